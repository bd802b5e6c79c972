#!/usr/bin/env bash
# Runs what needs a GPU, from a bundle, and prints one line each. Exits 0 only if all of it passed; what this machine has
# no use for is skipped, with the reason. Ends at the first line that runs over its time: it may have left the GPU busy.
#
#   ./run.sh gpu/run.sh [--quick] [--limit_s=120] [NAME...]
#
# --quick: without compute-sanitizer; --limit_s: of each line; NAME: only these lines.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
quick=
limit_s=120
only=()
for argument in "$@"; do
  case "$argument" in
    --quick) quick=1 ;;
    --limit_s=*) limit_s=${argument#*=} ;;
    -*) echo "gpu/run.sh: unknown option $argument" >&2; exit 1 ;;
    *) only+=("$argument") ;;
  esac
done
logs=$(mktemp -d)
failed=0
known=" "
lines=()

wanted() {  # wanted NAME: whether that line is to run
  known+="$1 "
  [ ${#only[@]} = 0 ] || case " ${only[*]} " in *" $1 "*) ;; *) return 1 ;; esac
}
line() {  # line NAME OUTCOME SECONDS
  lines+=("$(printf '%-20s %-36s %4d s' "$@")")
  echo "${lines[-1]}"
}
skip() {  # skip NAME REASON
  wanted "$1" && line "$1" "skipped: $2" 0
}
finish() {
  local name
  echo
  for name in kernel_bench batching two_gpus soak transports sass; do
    [ ! -e "$logs/$name.log" ] || { echo "$name:"; cat "$logs/$name.log"; echo; }
  done
  printf '%s\n' "${lines[@]}"
  echo "$SECONDS s; logs: $logs"
  exit "$failed"
}
report() {  # report NAME COMMAND...: in a log, whose end is shown if it fails
  local name=$1 status=0 start=$SECONDS outcome
  wanted "$name" || return 0
  shift
  local log=$logs/$name.log
  # A shell, as the command may be a function of this one.
  timeout --kill-after=10 "$limit_s" bash -c '"$@"' run "$@" >"$log" 2>&1 || status=$?
  case "$status" in
    0) outcome=passed ;;
    77) outcome="skipped: $(tail -n 1 "$log")" ;;
    124 | 137) outcome="FAILED (over $limit_s s)" ;;
    *) outcome="FAILED ($status)" ;;
  esac
  # What is skipped or not there says nothing about this GPU.
  if [ "$status" = 0 ] && grep -q '\[  SKIPPED \]\|^\[=*\] Running 0 tests' "$log"; then outcome="FAILED (not all ran)"; fi
  case "$outcome" in FAILED*) failed=1; tail -n 20 "$log" ;; esac
  line "$name" "$outcome" $((SECONDS - start))
  case "$status" in 124 | 137) finish ;; esac
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
export -f sanitize finds

bounds_of() {  # bounds_of BACKEND GROUP...: conformance's comparison with fp64, of these groups, as a filter
  local backend=$1 group filter=
  shift
  for group in "$@"; do filter+="*IsWithinTheBoundsOfFp64/${backend}_$group:"; done
  echo "--gtest_filter=${filter%:}"
}
sanitize_backend() {  # sanitize_backend BACKEND: each tool over the groups that have all shapes, families and tails
  local backend=$1 tool
  for tool in memcheck initcheck synccheck; do
    report "${tool}_${backend#cuda_}" sanitize "$tool" "$here/tests/conformance_test" \
      "$(bounds_of "$backend" heads layout head_dim window mixture):*AKeyTouchesOnlyRowsThatSeeIt/${backend}_layout"
  done
}
racecheck_backend() {  # racecheck_backend BACKEND LIB_DIR: with the kernels of these libraries
  report "racecheck_${1#cuda_}" env LD_LIBRARY_PATH="$2${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
    compute-sanitizer --error-exitcode 9 --tool racecheck "$here/tests/conformance_test" "$(bounds_of "$1" heads softcap)"
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || { echo "gpu/run.sh: no GPU here" >&2; exit 1; }
gpus=$(nvidia-smi --list-gpus | wc -l)
hopper=
[ "$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)" != 9.0 ] || hopper=1
cuda='--gtest_filter=*cuda*'
for suite in conformance invariance dynamic_range public_failures; do
  report "$suite" "$here/tests/${suite}_test" "$cuda"
done
report registry "$here/tests/registry_test"
report cuda_device "$here/tests/cuda_device_gpu_test"
report cuda_regions "$here/tests/cuda_regions_gpu_test"
report cuda_ipc "$here/tests/cuda_ipc_gpu_test"
if [ "$gpus" -ge 2 ]; then
  report cuda_devices "$here/tests/cuda_devices_gpu_test"
  report two_gpus "$here/gpu/two_gpus.sh"
else
  report cuda_devices "$here/tests/cuda_devices_gpu_test" '--gtest_filter=CudaDevicesGpuTest.*'
  skip two_gpus "one GPU"
fi
report sass "$here/gpu/sass.sh" "$here"/lib/libattnd*.so
if [ -n "$hopper" ]; then report delays "$here/gpu/delays.sh" "$here/lib" "$here/lib_delays"; else skip delays "no Hopper GPU"; fi
report demo "$here/gpu/demo.sh" "$here/bin" "$here/data"
report soak "$here/gpu/soak.sh"
# What it must reach was set for this GPU.
if [ -n "$hopper" ]; then report transports "$here/gpu/transports.sh"; else skip transports "no Hopper GPU"; fi
# With tensors that are brought the bus is the limit.
if [ -n "$hopper" ]; then
  report batching "$here/bin/batching_bench" --devices=cuda:0 --least_in_place=3
else
  skip batching "no Hopper GPU"
fi
report kernel_bench "$here/bin/kernel_bench" --filter='^(prefill|decode)/bf16' --rounds=3
if [ -z "$quick" ]; then
  sanitize_backend cuda_generic
  racecheck_backend cuda_generic "$here/lib"
  if [ -n "$hopper" ]; then
    sanitize_backend cuda_sm90a
    # In the build with delays every lane arrives at the barriers of the ring of items: one for its warp, as otherwise,
    # racecheck does not follow.
    if [ -e "$here/lib_delays" ]; then
      racecheck_backend cuda_sm90a "$here/lib_delays"
    else
      skip racecheck_sm90a "no build with delays"
    fi
  else
    for tool in memcheck initcheck synccheck racecheck; do skip "${tool}_sm90a" "no Hopper GPU"; done
  fi
  # The same on device memory, with copies and streams around: the kernels' own tests lend the GPU host memory. Gaps between
  # tensors that are copied together are not initialised: what copies read is not looked at. Nor does initcheck see that
  # cudaMemcpyBatchAsync writes: copies go one by one there.
  report device_memcheck sanitize memcheck "$here/tests/cuda_device_gpu_test" '--gtest_filter=*EveryLayout*:*SlicesAndBatches*:*ThreeBatches*'
  report device_initcheck sanitize initcheck --check-api-memory-access no "$here/tests/cuda_device_gpu_test" \
    '--gtest_filter=*EveryLayout*/OneByOne:*ThreeBatches*/OneByOne'
  # That racecheck is clean means something if it finds these.
  for race in store copy; do report "planted_race_$race" finds racecheck "$here/tests/planted_race" "$race"; done
  report planted_race_none sanitize racecheck "$here/tests/planted_race" none
  if [ -n "$hopper" ]; then
    report planted_race_ring finds racecheck "$here/tests/planted_race" ring_no_wait
    report planted_race_no_ring sanitize racecheck "$here/tests/planted_race" ring
  fi
fi
for name in "${only[@]}"; do
  case "$known" in *" $name "*) continue ;; esac
  echo "gpu/run.sh: there is no line $name; there are:$known" >&2
  failed=1
done
finish
