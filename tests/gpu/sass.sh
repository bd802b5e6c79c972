#!/usr/bin/env bash
# Looks at the machine code of the Hopper kernels: each must multiply with HGMMA, load with UTMALDG, and keep nothing in
# local memory (STL, LDL: spilled registers). Prints a line a kernel with its counts. Exits 77, skipped, where there is no
# cuobjdump.
#
#   sass.sh [--code] LIBRARY...     shared libraries, programs or objects; together they hold at least one such kernel
#
# --code: prints the code itself, and judges nothing.
set -uo pipefail

command -v cuobjdump >/dev/null || { echo "no cuobjdump here"; exit 77; }
code=
[ "${1:-}" != --code ] || { code=1; shift; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for file in "$@"; do (file=$(realpath "$file") && cd "$work" && cuobjdump --extract-elf all "$file" >/dev/null 2>&1); done
# To disassemble all of a library takes half a minute on one core: these kernels alone, on all cores.
find "$work" -name '*.cubin' -print0 | xargs -0 -r grep -lZ _sm90a |
  xargs -0 -r -n 1 -P "$(nproc)" sh -c 'cuobjdump --dump-sass "$1" >"$1.sass" 2>/dev/null' dump
code_of_all() { find "$work" -name '*.sass' -exec cat {} +; }
if [ -n "$code" ]; then
  code_of_all
  exit
fi
code_of_all | awk '
  function finish() {
    if (name == "") return
    kernels++
    good = products > 0 && loads > 0 && spills == 0
    printf "%-52s HGMMA %5d  UTMALDG %4d  STL/LDL %4d%s\n", name, products, loads, spills, good ? "" : "  WRONG"
    if (!good) wrong++
    name = ""
  }
  /Function : / {
    finish()
    products = loads = spills = 0
    if ($NF ~ /^attn_fwd_.*_sm90a(_|$)/) name = $NF
  }
  # An instruction follows its address and, sometimes, its predicate.
  / HGMMA[. ]/ { products++ }
  / UTMALDG[. ]/ { loads++ }
  / (STL|LDL)[. ]/ { spills++ }
  END {
    finish()
    printf "in all: %d kernels, %d wrong\n", kernels, wrong
    exit kernels == 0 || wrong > 0
  }' | sort
