#!/bin/bash
# NVIDIA's perf_analyzer against an unmodified attnd with the CPU backend: plain calls, asynchronous ones, streams, and system
# shared memory. Exits 0 if each run ended well and attnd answered every one of its requests.
#
#   tests/kserve/perf_analyzer.sh [BIN_DIR [OUT_DIR]]    default: build/release/bin build/perf_analyzer
#
# The wheel on PyPI needs glibc 2.38: where this machine's is older, it runs with that of Debian 13, whose libraries mmdebstrap
# unpacks into OUT_DIR (26 MB; nothing is installed, no root needed). Needs mmdebstrap, and PyPI and Debian's mirror to be in reach.
#
# Client and server share this machine's processors: the figures say that it works, not how fast it can be.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=${1:-$root/build/release/bin}
out=${2:-$root/build/perf_analyzer}
requests=${PERF_REQUESTS:-200}  # of a window; a run has at least three
mkdir -p "$out"
program=$out/wheel/perf_analyzer/bin/perf_analyzer

die() {
  echo "perf_analyzer.sh: $*" >&2
  exit 1
}

[ -x "$bin/attnd" ] || die "$bin/attnd is not there; build it first (make build)"

# The program, unpacked from its wheel.
fetch() {
  [ ! -e "$out/wheel/.complete" ] || return 0
  rm -rf "$out/wheel"
  python3 -m venv "$out/venv"
  "$out/venv/bin/pip" download --quiet --no-deps --only-binary=:all: --python-version 3.13 --platform manylinux_2_38_x86_64 \
    --dest "$out/wheel" 'perf-analyzer>=2.60'
  "$out/venv/bin/python" -m zipfile -e "$out"/wheel/*.whl "$out/wheel"
  chmod +x "$program"
  touch "$out/wheel/.complete"
}

debian13() {
  [ ! -e "$out/debian13/.complete" ] || return 0
  command -v mmdebstrap >/dev/null || die "mmdebstrap is not here: apt-get install mmdebstrap"
  rm -rf "$out/debian13"
  mmdebstrap --quiet --variant=extract --include=libstdc++6,zlib1g,libssl3t64,libzstd1 trixie "$out/debian13" \
    'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main'
  touch "$out/debian13/.complete"
}

perf=("$program")
prepare() {
  fetch
  local glibc
  glibc=$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)
  if [ "$(printf '%s\n' 2.38 "$glibc" | sort -V | head -n 1)" != 2.38 ]; then
    debian13
    perf=("$out/debian13/usr/lib64/ld-linux-x86-64.so.2" --library-path "$out/debian13/usr/lib/x86_64-linux-gnu" "$program")
  fi
  "${perf[@]}" --version
}

server=
work=$(mktemp -d)
cleanup() {
  if [ -n "$server" ]; then kill -KILL "$server" 2>/dev/null || true; fi
  rm -rf "$work"
}
trap cleanup EXIT

# Any name: perf_analyzer chooses its own, after the tensors.
start_attnd() {
  "$bin/attnd" --listen=127.0.0.1:0 --http_listen=127.0.0.1:0 --local_socket=none --devices=cpu --port_file="$work/ports" \
    --drain_delay_ms=0 --allow_shm_names --shm_name_prefix= >"$out/attnd.log" 2>&1 &
  server=$!
  for _ in $(seq 600); do
    [ ! -e "$work/ports" ] && kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
  [ -e "$work/ports" ] || { cat "$out/attnd.log" >&2; die "attnd did not start"; }
  address=127.0.0.1:$(sed -n 1p "$work/ports")
  http=127.0.0.1:$(sed -n 2p "$work/ports")
}

finished() {  # finished CODE_PATTERN: calls that ended so
  python3 - "http://$http/metrics" "$1" <<'PY'
import re, sys, urllib.request
lines = urllib.request.urlopen(sys.argv[1]).read().decode().splitlines()
pattern = re.compile(r'attnd_requests_finished_total\{.*code="(%s)"' % sys.argv[2])
print(sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if pattern.match(line)))
PY
}

failures=0
run() {  # run NAME FLAG...
  local name=$1 ok_before ok status=0
  shift
  ok_before=$(finished OK)
  # No stability is asked for: it is not what is looked at here, and others use this machine.
  timeout 120 "${perf[@]}" -m attention -u "$address" -i grpc --measurement-mode count_windows \
    --measurement-request-count "$requests" --stability-percentage 1000 \
    --shape Q:1,8,128,64 --shape K:1,2,256,64 --shape V:1,2,256,64 "$@" >"$out/$name.txt" 2>&1 || status=$?
  ok=$(($(finished OK) - ok_before))
  local client server_count
  client=$(grep -m1 'Request count:' "$out/$name.txt" | grep -o '[0-9]*' || echo 0)
  server_count=$(grep -m1 'Successful request count:' "$out/$name.txt" | grep -o '[0-9]*' || echo 0)
  printf '%-22s exit %s; %s requests measured, %s in ModelStatistics, %s answered; %s\n' "$name" "$status" "$client" \
    "$server_count" "$ok" "$(sed -nE 's/^ +(Throughput|p50 latency|p99 latency): (.*)/\1 \2/p' "$out/$name.txt" | paste -sd, )"
  # What is sent between two windows is answered, and in neither count.
  if [ "$status" != 0 ] || [ "$client" -lt "$requests" ] || [ "$server_count" -lt "$requests" ] || [ "$ok" -lt "$client" ]; then
    tail -n 5 "$out/$name.txt" >&2
    failures=$((failures + 1))
  fi
}

prepare
start_attnd
run sync
run sync_4 --concurrency-range 4
run async_4 --async --concurrency-range 4
run stream_4 --async --streaming --concurrency-range 4
run shared_memory --shared-memory=system --output-shared-memory-size=1048576
run shared_memory_async_4 --shared-memory=system --output-shared-memory-size=1048576 --async --concurrency-range 4
refused=$(finished '(?!OK").*')
echo "refused or failed: $refused"
[ "$refused" = 0 ] || failures=$((failures + 1))

kill -TERM "$server"
wait "$server" || die "attnd ended with $?"
server=
[ "$failures" = 0 ] || die "$failures runs failed; see $out"
