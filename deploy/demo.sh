#!/bin/bash
# Starts attnd on a free loopback port, sends it the captured Q/K/V of tests/data through attnctl, checks every answer
# against fp64, prints one table, and stops the server. Exits 0 only if all of it held.
#
#   deploy/demo.sh [BIN_DIR [DATA_DIR]]    default: build/release/bin tests/data
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=${1:-$root/build/release/bin}
tensors=${2:-$root/tests/data}
for program in attnd attnctl; do
  [ -x "$bin/$program" ] || { echo "demo: $bin/$program is not there; build it first (make build)" >&2; exit 1; }
done

work=$(mktemp -d)
server=
cleanup() {
  if [ -n "$server" ]; then kill -KILL "$server" 2>/dev/null || true; fi
  rm -rf "$work"
}
trap cleanup EXIT

"$bin/attnd" --listen=127.0.0.1:0 --http_listen=127.0.0.1:0 --port_file="$work/ports" --drain_delay_ms=0 \
  >"$work/attnd.log" 2>&1 &
server=$!
for _ in $(seq 600); do
  [ ! -e "$work/ports" ] && kill -0 "$server" 2>/dev/null || break
  sleep 0.1
done
if [ ! -e "$work/ports" ]; then
  echo "demo: attnd did not start:" >&2
  cat "$work/attnd.log" >&2
  exit 1
fi
address=127.0.0.1:$(head -n 1 "$work/ports")
"$bin/attnctl" health --server "$address"
echo

# What to run, a line each: file, causal, scale.
held=true
/usr/bin/python3 - "$tensors/manifest.json" >"$work/inputs" <<'PY'
import json, sys
for entry in json.load(open(sys.argv[1])):
    print(entry["file"], entry["causal"].replace("_", "-"), entry["scale"])
PY
while read -r file causal scale; do
  data=$tensors/$file
  status=0
  "$bin/attnctl" run --server "$address" --q "$data:q" --k "$data:k" --v "$data:v" --causal "$causal" --scale "$scale" \
    --verify --json </dev/null >"$work/answer" 2>"$work/error" || status=$?
  [ "$status" = 0 ] || held=false
  printf '%s\t%s\t%s\t%s\n' "$file" "$status" "$(cat "$work/answer")" "$(tr '\n\t' '  ' <"$work/error")" >>"$work/answers"
done <"$work/inputs"

/usr/bin/python3 - "$work/answers" <<'PY'
import json, sys
rows = [("input", "shape", "backend", "kernel", "queue us", "run us", "total us", "error vs fp64", "bound", "")]
for line in open(sys.argv[1]):
    file, status, answer, error = line.rstrip("\n").split("\t")
    if not answer:
        rows.append((file, error or "no answer", *[""] * 7, "FAILED"))
        continue
    answer = json.loads(answer)
    times = (str(answer[key]) for key in ("queue_us", "run_us", "total_us"))
    numbers = (f"{float(answer['rel_error']):.2e}", f"{answer['bound']:.1e}")
    verdict = "ok" if status == "0" and answer["ok"] else "FAILED"
    rows.append((file, "x".join(map(str, answer["shape"])), answer["backend"], answer["kernel"], *times, *numbers, verdict))
widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
for row in rows:
    print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
PY
[ -s "$work/answers" ] || held=false

kill -TERM "$server"
status=0
wait "$server" || status=$?
server=
echo
if [ "$status" != 0 ]; then
  echo "demo: attnd ended with exit status $status:" >&2
  cat "$work/attnd.log" >&2
  exit 1
fi
if [ "$held" != true ]; then
  echo "demo: an answer FAILED"
  exit 1
fi
echo "Every answer is within its bound; attnd drained and exited with 0."
