#!/usr/bin/env bash
# Two builds of the Hopper kernels, one of which waits for a random while around every barrier (CMake's
# ATTND_RANDOM_DELAYS), must give the same bits: a missing wait shows as a difference. Exits 77, skipped, where something
# that it needs is not there.
#
#   delays.sh LIB_DIR DELAYS_LIB_DIR     folders with libattnd_kernels_c.so and what it needs of attnd's
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
plain=$1
delays=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

skip() { echo "$*"; exit 77; }
[ -e "$delays/libattnd_kernels_c.so" ] || skip "no build with delays"
command -v cuobjdump >/dev/null || skip "no cuobjdump, to see that the delays are there"
python3 -c 'import torch' 2>/dev/null || skip "no torch"

sleeps() { "$here/sass.sh" --code "$1"/libattnd*.so | grep -c ' NANOSLEEP'; }  # sleeps DIR: places to sleep in its kernels
with=$(sleeps "$delays")
without=$(sleeps "$plain")
if [ "$with" = 0 ] || [ "$without" != 0 ]; then
  echo "delays.sh: NANOSLEEP is $with times in $delays and $without times in $plain; only the former may have any" >&2
  exit 1
fi

for build in plain delays; do
  LD_LIBRARY_PATH=${!build}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
    python3 "$here/output_hash.py" "${!build}/libattnd_kernels_c.so" cuda_sm90a >"$work/$build" || exit 1
done
diff "$work/plain" "$work/delays" | head -n 20
[ "${PIPESTATUS[0]}" = 0 ] || exit 1
echo "$(wc -l <"$work/plain") problems, the same bits; $with places to sleep"
