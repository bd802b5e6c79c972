# For scripts beside this one: starts attnd from a bundle and stops it, whatever becomes of the script. To be sourced.
bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
attnd=   # process id, while it runs
address= # of gRPC; http: of the metrics
http=

cleanup() {
  if [ -n "$attnd" ]; then kill -KILL "$attnd" 2>/dev/null || true; fi
  rm -rf "$work"
}
trap cleanup EXIT

die() {
  echo "$(basename "$0"): $*" >&2
  [ ! -e "$work/attnd.log" ] || tail -n 5 "$work/attnd.log" >&2
  exit 1
}

start_attnd() {  # start_attnd FLAG...
  rm -f "$work/ports"
  "$bundle/bin/attnd" --listen=127.0.0.1:0 --http_listen=127.0.0.1:0 --port_file="$work/ports" "$@" >"$work/attnd.log" 2>&1 &
  attnd=$!
  for _ in $(seq 600); do
    [ ! -e "$work/ports" ] && kill -0 "$attnd" 2>/dev/null || break
    sleep 0.1
  done
  [ -e "$work/ports" ] || die "attnd did not start"
  address=127.0.0.1:$(sed -n 1p "$work/ports")
  http=127.0.0.1:$(sed -n 2p "$work/ports")
}

# Waits for attnd to leave, a minute at most; it must with this exit status.
expect_exit() {  # expect_exit STATUS
  local status=0
  for _ in $(seq 600); do
    kill -0 "$attnd" 2>/dev/null || break
    sleep 0.1
  done
  kill -0 "$attnd" 2>/dev/null && die "attnd has not ended within a minute"
  wait "$attnd" || status=$?
  attnd=
  [ "$status" = "$1" ] || die "attnd ended with exit status $status, expected $1"
}

metric() {  # metric NAME: its value
  python3 - "http://$http/metrics" "$1" <<'PY'
import sys, urllib.request
for line in urllib.request.urlopen(sys.argv[1]).read().decode().splitlines():
    if line.startswith(sys.argv[2] + " "):
        print(int(float(line.split()[1])))
PY
}

# What Python says of the objects that attnload printed, as `loads`.
of_loads() {  # of_loads EXPRESSION FILE...
  local expression=$1
  shift
  python3 -c 'import json, sys; loads = [json.load(open(f)) for f in sys.argv[2:]]; print(eval(sys.argv[1]))' "$expression" "$@"
}
