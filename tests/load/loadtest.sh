#!/bin/bash
# Starts attnd with the CPU backend on a free loopback port, measures what it can do with a closed loop, offers parts and
# multiples of that with an open one, prints the table, writes report.html, and stops the server. Exits 0 if no answer was
# wrong and no call lost.
#
#   tests/load/loadtest.sh [BIN_DIR [OUT_DIR]]    default: build/release/bin build/loadtest
#
# Server and client share this machine's processors: the figures are for looking at the curve, not for quoting.
# LOADTEST_DURATION (default 5s) is a step's; there are eight.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=${1:-$root/build/release/bin}
out=${2:-$root/build/loadtest}
for program in attnd attnload; do
  [ -x "$bin/$program" ] || { echo "loadtest: $bin/$program is not there; build it first (make build)" >&2; exit 1; }
done
mkdir -p "$out"

work=$(mktemp -d)
server=
cleanup() {
  if [ -n "$server" ]; then kill -KILL "$server" 2>/dev/null || true; fi
  rm -rf "$work"
}
trap cleanup EXIT

"$bin/attnd" --listen=127.0.0.1:0 --http_listen= --local_socket=none --devices=cpu --port_file="$work/ports" \
  --drain_delay_ms=0 >"$out/attnd.log" 2>&1 &
server=$!
for _ in $(seq 600); do
  [ ! -e "$work/ports" ] && kill -0 "$server" 2>/dev/null || break
  sleep 0.1
done
if [ ! -e "$work/ports" ]; then
  echo "loadtest: attnd did not start:" >&2
  cat "$out/attnd.log" >&2
  exit 1
fi

status=0
"$bin/attnload" --server "127.0.0.1:$(head -n 1 "$work/ports")" --concurrency 16 --rate 25%,50%,75%,90%,100%,125%,175% \
  --duration "${LOADTEST_DURATION:-5s}" --warmup 500ms --window 500ms --q_len 512 --q_heads 8 --kv_heads 2 \
  --causal bottom-right --max_tries 1 --verify 0.01 --html "$out/report.html" || status=$?

kill -TERM "$server"
wait "$server" || { echo "loadtest: attnd ended with $?" >&2; exit 1; }
server=
echo
echo "figures: $out/report.html"
exit "$status"
