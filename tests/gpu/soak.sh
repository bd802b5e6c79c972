#!/usr/bin/env bash
# Keeps attnd on the GPU busy with small calls of several shapes over gRPC, and watches its memory: host memory may grow
# by no more than the noise of an allocator after the first fifth of the calls, device memory not at all.
#
#   ./run.sh gpu/soak.sh [CALLS]     default: 100000
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/attnd.sh"
calls=${1:-100000}
# As tests/service/rss_soak.cc allows: gRPC's and malloc's caches come and go by a megabyte or two.
noise_kib=4096
# Each its own process: dtype, query heads, KV heads, q_len, kv_len, head_dim, causal.
shapes=(
  "float16 8 8 64 64 64 none"
  "bfloat16 8 2 33 97 128 bottom-right"
  "float32 4 4 17 50 64 none"
  "bfloat16 32 8 1 256 128 none"
  "float16 6 3 100 100 72 top-left"
  "float32 2 1 5 5 256 bottom-right"
)

rss_kib() { awk '/^VmRSS:/ { print $2 }' "/proc/$attnd/status"; }
gpu_mib() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | awk '{ mib += $1 } END { print mib }'; }
rows=()
row() { rows+=("$(printf '%10d %12s %12s %14s %14s' "$1" "$2" "$3" "$(metric attnd_device_held_bytes)" "$(metric attnd_pinned_held_bytes)")"); }

run_round() {
  local load=() shape i=0
  for shape in "${shapes[@]}"; do
    read -r dtype q_heads kv_heads q_len kv_len head_dim causal <<<"$shape"
    "$bundle/bin/attnload" --server "$address" --concurrency 8 --duration 3s --warmup 1ms --dtype "$dtype" --q_heads "$q_heads" \
      --kv_heads "$kv_heads" --q_len "$q_len" --kv_len "$kv_len" --head_dim "$head_dim" --causal "$causal" \
      --seed "$((done_calls + i))" --verify 0.002 --json >"$work/load$i" 2>"$work/error$i" &
    load+=($!)
    i=$((i + 1))
  done
  for i in "${!load[@]}"; do wait "${load[$i]}" || die "attnload: ${shapes[$i]}: $(cat "$work/load$i" "$work/error$i")"; done
  done_calls=$((done_calls + $(of_loads 'sum(l["answered"] for l in loads)' "$work"/load*)))
  verified=$((verified + $(of_loads 'sum(l["verified"] for l in loads)' "$work"/load*)))
  [ "$(of_loads 'sum(l["failed"] + l["wrong"] + l["lost"] for l in loads)' "$work"/load*)" = 0 ] || die "a call failed"
}

start_attnd --drain_delay_ms=0 --log_level=warning
done_calls=0 verified=0 first_rss_kib=
while [ "$done_calls" -lt "$calls" ]; do
  [ "$SECONDS" -lt 120 ] || die "$done_calls calls in $SECONDS s"
  run_round
  rss=$(rss_kib) gpu=$(gpu_mib)
  row "$done_calls" "$rss" "$gpu"
  if [ -z "$first_rss_kib" ] && [ "$((5 * done_calls))" -ge "$calls" ]; then first_rss_kib=$rss first_gpu_mib=$gpu; fi
done
kill -TERM "$attnd"
expect_exit 0

echo "     calls      RSS KiB   GPU MiB used   device held B  pinned held B"
printf '%s\n' "${rows[@]}"
echo "$done_calls calls in $SECONDS s, $verified of the answers right against fp64; after the first fifth: RSS $((rss - first_rss_kib)) KiB (at most $noise_kib), GPU $((gpu - first_gpu_mib)) MiB (at most 0)"
[ "$((rss - first_rss_kib))" -le "$noise_kib" ] || die "host memory grows"
[ "$gpu" -le "$first_gpu_mib" ] || die "device memory grows"
