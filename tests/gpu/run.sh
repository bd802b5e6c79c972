#!/usr/bin/env bash
# Runs what needs a GPU, from a bundle, and prints one line each. Exits 0 only if all of it passed.
#
#   ./run.sh gpu/run.sh [--quick | NAME...]     --quick: without compute-sanitizer; NAME: only these lines
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
only=" $* "
quick=
case "$only" in *" --quick "*) quick=1 only="  " ;; esac
logs=$(mktemp -d)
failed=0
lines=()

line() {  # line NAME OUTCOME SECONDS
  lines+=("$(printf '%-28s %-20s %4d s' "$@")")
  echo "${lines[-1]}"
}
report() {  # report NAME COMMAND...: in a log, whose end is shown if it fails
  local name=$1 status=0 start=$SECONDS
  case "$only" in "  "|*" $name "*) ;; *) return ;; esac
  shift
  "$@" >"$logs/$name.log" 2>&1 || status=$?
  # What is skipped says nothing about this GPU.
  if [ "$status" = 0 ] && grep -q '\[  SKIPPED \]' "$logs/$name.log"; then status=skipped; fi
  [ "$status" = 0 ] || { failed=1; tail -n 20 "$logs/$name.log"; }
  line "$name" "$([ "$status" = 0 ] && echo passed || echo "FAILED ($status)")" $((SECONDS - start))
}
sanitize() {  # sanitize TOOL [OPTION...] PROGRAM [ARGUMENT...]: 9 if the tool finds something
  local tool=$1
  shift
  compute-sanitizer --error-exitcode 9 --tool "$tool" "$@"
}
finds() {  # finds TOOL PROGRAM [ARGUMENT...]
  local status=0
  sanitize "$@" || status=$?
  [ "$status" = 9 ]
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || { echo "gpu/run.sh: no GPU here" >&2; exit 1; }
gpus=$(nvidia-smi --list-gpus | wc -l)
cuda='--gtest_filter=*cuda*'
for suite in conformance invariance public_failures; do report "$suite" "$here/tests/${suite}_test" "$cuda"; done
report registry "$here/tests/registry_test"
report cuda_device "$here/tests/cuda_device_gpu_test"
if [ "$gpus" -ge 2 ]; then
  report cuda_devices "$here/tests/cuda_devices_gpu_test"
  report two_gpus "$here/gpu/two_gpus.sh"
else
  report cuda_devices "$here/tests/cuda_devices_gpu_test" '--gtest_filter=CudaDevicesGpuTest.*'
  case "$only" in "  "|*" two_gpus "*) line two_gpus "skipped: one GPU" 0 ;; esac
fi
report demo "$here/gpu/demo.sh" "$here/bin" "$here/data"
report soak "$here/gpu/soak.sh"
report kernel_bench "$here/bin/kernel_bench" --filter='^(prefill|decode)/bf16' --rounds=3
if [ -z "$quick" ]; then
  for tool in memcheck initcheck synccheck; do report "$tool" sanitize "$tool" "$here/tests/conformance_test" "$cuda"; done
  # The same on device memory, with copies and streams around: the kernels' own tests lend the GPU host memory. Gaps between
  # tensors that are copied together are not initialised: what copies read is not looked at.
  report device_memcheck sanitize memcheck "$here/tests/cuda_device_gpu_test" '--gtest_filter=*EveryLayout*:*SlicesAndBatches*:*ThreeBatches*'
  report device_initcheck sanitize initcheck --check-api-memory-access no "$here/tests/cuda_device_gpu_test" \
    '--gtest_filter=*EveryLayout*:*ThreeBatches*'
  report racecheck sanitize racecheck "$here/tests/conformance_test" \
    '--gtest_filter=*IsWithinTheBoundsOfFp64/cuda*_heads:*IsWithinTheBoundsOfFp64/cuda*_softcap'
  # That racecheck is clean means something if it finds these.
  for race in store copy; do report "planted_race_$race" finds racecheck "$here/tests/planted_race" "$race"; done
  report planted_race_none sanitize racecheck "$here/tests/planted_race" none
fi
echo
[ ! -e "$logs/kernel_bench.log" ] || cat "$logs/kernel_bench.log"
for name in two_gpus soak; do [ ! -e "$logs/$name.log" ] || { echo; echo "$name:"; cat "$logs/$name.log"; }; done
echo
printf '%s\n' "${lines[@]}"
echo "$SECONDS s; logs: $logs"
exit "$failed"
