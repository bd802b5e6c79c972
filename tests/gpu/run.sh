#!/usr/bin/env bash
# Runs what needs a GPU, from a bundle, and prints one line each. Exits 0 only if all of it passed.
#
#   ./run.sh gpu/run.sh [--quick]     --quick: without compute-sanitizer
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
logs=$(mktemp -d)
failed=0
report() {  # report NAME COMMAND...
  local name=$1 status=0 start=$SECONDS
  shift
  "$@" >"$logs/$name.log" 2>&1 || status=$?
  if [ "$status" = 0 ] && grep -q '\[  SKIPPED \]' "$logs/$name.log"; then status=skipped; fi
  [ "$status" = 0 ] || { failed=1; tail -n 20 "$logs/$name.log"; }
  printf '%-28s %-8s %4d s\n' "$name" "$([ "$status" = 0 ] && echo passed || echo "FAILED ($status)")" $((SECONDS - start))
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || { echo "gpu/run.sh: no GPU here" >&2; exit 1; }
cuda='--gtest_filter=*cuda*'
for suite in conformance invariance public_failures; do report "$suite" "$here/tests/${suite}_test" "$cuda"; done
report registry "$here/tests/registry_test"
report cuda_device "$here/tests/cuda_device_gpu_test"
report demo "$here/gpu/demo.sh" "$here/bin" "$here/data"
if [ "${1:-}" != --quick ]; then
  some='--gtest_filter=*cuda*_heads*:*cuda*_layout*'
  for tool in memcheck initcheck synccheck; do
    report "$tool" compute-sanitizer --error-exitcode 1 --tool "$tool" "$here/tests/conformance_test" "$some"
  done
  report racecheck compute-sanitizer --error-exitcode 1 --tool racecheck "$here/tests/conformance_test" \
    '--gtest_filter=*IsWithinTheBoundsOfFp64/cuda*_heads'
fi
echo "logs: $logs"
exit "$failed"
