#!/usr/bin/env bash
# attnd on two GPUs, over gRPC: both serve, every answer is right, it drains under load, and the loss of one GPU ends it.
#
#   ./run.sh gpu/two_gpus.sh
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/attnd.sh"
load() {  # load DURATION FILE [FLAG...]: becomes attnload
  local duration=$1 file=$2
  shift 2
  exec "$bundle/bin/attnload" --server "$address" --duration "$duration" --concurrency 32 --dtype bfloat16 --q_heads 8 --q_len 1024 \
    --head_dim 128 --causal bottom-right --json "$@" >"$file" 2>&1
}

start_attnd --devices=cuda:0,cuda:1 --drain_delay_ms=0
(load 4s "$work/load" --verify 0.01) || die "attnload: $(cat "$work/load")"
share=$(of_loads 'min(l["answered_by_device"].get(d, 0) / l["answered"] for l in loads for d in ("cuda:0", "cuda:1"))' "$work/load")
[ "$(of_loads "$share >= 0.25" "$work/load")" = True ] || die "one GPU has $share of the answers"

load 10s "$work/drained" --max_tries 1 &
loader=$!
sleep 2
kill -TERM "$attnd"
expect_exit 0
kill -TERM "$loader"
wait "$loader" || true
refused=$(of_loads 'loads[0]["failed_by_code"]' "$work/drained")
[ "$(of_loads 'loads[0]["answered"] > 0 and loads[0]["lost"] == 0 and set(loads[0]["failed_by_code"]) <= {"UNAVAILABLE"}' "$work/drained")" = True ] ||
  die "in the drain: $refused"

# Past the start, which makes some hundred copies.
ATTND_FAULT=cuda_sticky_after:2000 start_attnd --devices=cuda:0,cuda:1 --drain_delay_ms=0
load 10s "$work/faulted" --max_tries 1 --warmup 0 &
loader=$!
expect_exit 4
kill -TERM "$loader"
wait "$loader" || true
[ "$(of_loads '"INTERNAL" in loads[0]["failed_by_code"] and loads[0]["lost"] == 0' "$work/faulted")" = True ] ||
  die "after the fault: $(cat "$work/faulted")"

of_loads '"{} calls, {:.0f}/s, {} verified, {} wrong, worst error {:.2e} (bound {:.1e}), p50 {} us, by device {}".format(
  *(loads[0][k] for k in ("answered", "answered_per_s", "verified", "wrong", "worst_rel_error", "bound", "p50_us", "answered_by_device")))' "$work/load"
echo "drained under load: exit 0, refused $refused; one GPU lost: exit 4, $(of_loads 'loads[0]["failed_by_code"]' "$work/faulted")"
