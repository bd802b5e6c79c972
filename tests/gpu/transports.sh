#!/usr/bin/env bash
# B1 H16 L16384 D128 bf16, causal and full, over each transport: served time, its parts, its ratio to the kernel and to the
# bus. Fails where a region or memory on the GPU is slower than it must be (transport_bench.cc says what that is).
#
#   ./run.sh gpu/transports.sh [--json=FILE] [--rounds=N]
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/attnd.sh"
start_attnd --devices=cuda:0 --drain_delay_ms=0 --local_socket="$work/side.sock" --allow_cuda_ipc
"$bundle/bin/transport_bench" --server="$address" --local_socket="$work/side.sock" "$@"
kill -TERM "$attnd"
expect_exit 0
