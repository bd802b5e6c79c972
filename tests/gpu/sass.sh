#!/usr/bin/env bash
# Looks at the machine code of the Hopper kernels: each must multiply with HGMMA, load with UTMALDG, and keep nothing in
# local memory (STL, LDL: spilled registers). Prints a line a kernel with its counts. Exits 77, skipped, where there is no
# cuobjdump.
#
#   sass.sh LIBRARY...     shared libraries, programs or objects; together they hold at least one such kernel
set -uo pipefail

command -v cuobjdump >/dev/null || { echo "no cuobjdump here"; exit 77; }
for file in "$@"; do cuobjdump --dump-sass "$file" 2>/dev/null; done | awk '
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
    printf "%d kernels, %d wrong\n", kernels, wrong
    exit kernels == 0 || wrong > 0
  }'
