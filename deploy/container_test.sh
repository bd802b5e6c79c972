#!/usr/bin/env bash
# Builds attnd's image, runs it with as few rights as there are, and proves what deploy/README.md says about it.
#
#   deploy/container_test.sh                     builds from the sources, as a user's `docker build` does (minutes)
#   deploy/container_test.sh --prebuilt [DIR]    packages DIR's programs (default build/release/bin) instead (seconds)
#
# Ends with the number of checks. Exit status: 0 all hold, 1 one does not, 77 no container engine here (it says why).
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/container_engine.sh
enter_sandbox deploy/container_test.sh "$@"

TAG=localhost/attnd:test
NAME=attnd-test
DATA=tests/data/smollm2_l3.safetensors
WORK=$(mktemp -d)
bin_dir=
if [ "${1:-}" = --prebuilt ]; then
  bin_dir=${2:-build/release/bin}
  can_package "$bin_dir" || exit $?
fi
limits=(--memory 1g)
checks=0

# Docker's containers outlive the script, podman's do not: one way for both.
cleanup() {
  engine rm -f "$NAME" >/dev/null 2>&1 || true
  rm -rf "$WORK"
}
trap cleanup EXIT

# check WHAT CMD...: CMD must succeed. Its output is shown when it does not.
check() {
  local what=$1
  shift
  if ! "$@" >"$WORK/check.log" 2>&1; then
    echo "FAILED  $what" >&2
    cat "$WORK/check.log" >&2
    echo "--- the container's log" >&2
    engine logs "$NAME" >&2 || true
    exit 1
  fi
  checks=$((checks + 1))
  echo "ok      $what"
}

refused() { ! "$@"; }

# poll SECONDS CMD...: until CMD succeeds.
poll() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt "$deadline" ] || return 1
    sleep 0.05
  done
}

# start [FLAGS...]: the container, in the background; FLAGS replace the image's own. Sets GRPC and HTTP, its addresses.
start() {
  local network=(--network ns:/run/netns/attnd)
  [ "$ENGINE" = podman ] || network=(-p 127.0.0.1::7070 -p 127.0.0.1::7071)
  engine rm -f "$NAME" >/dev/null 2>&1 || true
  engine run -d --name "$NAME" "${network[@]}" "${HARDENED[@]}" "${limits[@]}" "$TAG" "$@" >"$WORK/start.log" 2>&1 ||
    { cat "$WORK/start.log" >&2; exit 1; }
  GRPC=127.0.0.1:7070 HTTP=127.0.0.1:7071
  if [ "$ENGINE" = docker ]; then
    # One that has ended at once has none.
    GRPC=$(docker port "$NAME" 7070/tcp 2>/dev/null || true) HTTP=$(docker port "$NAME" 7071/tcp 2>/dev/null || true)
  fi
}

# The container has ended by itself, well or not.
state() { engine inspect --format '{{.State.Status}} {{.State.ExitCode}}' "$NAME"; }
exited_with_0() { [ "$(state)" = "exited 0" ]; }
exited_with_error() { [[ "$(state)" == "exited "[1-9]* ]]; }

healthy() {
  if [ "$ENGINE" = docker ]; then
    [ "$(docker inspect --format '{{.State.Health.Status}}' "$NAME")" = healthy ]
  else
    engine healthcheck run "$NAME"
  fi
}

log_says() { engine logs "$NAME" 2>&1 | grep -e "$1"; }

# http PATH: prints the status and the body.
http() {
  in_network /usr/bin/python3 - "http://$HTTP$1" <<'PY'
import sys, urllib.error, urllib.request
try:
    answer = urllib.request.urlopen(sys.argv[1], timeout=5)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status)
print(answer.read().decode())
PY
}

answers() { [ "$(http "$1" | head -n 1)" = "$2" ]; }

# Calls that the server has begun to read and not ended.
in_flight() {
  http /metrics | awk '/^attnd_requests_received_total/ { n += $2 } /^attnd_requests_finished_total/ { n -= $2 } END { print n + 0 }'
}

has_in_flight() { [ "$(in_flight)" -gt 0 ]; }

one_processor() { in_network "$ATTNCTL" info --server "$GRPC" --json | grep '"processors":1[,}]'; }

attention() {
  in_network "$ATTNCTL" run --server "$GRPC" --causal bottom-right --json --q "$DATA:q" --k "$DATA:k" --v "$DATA:v" "$@"
}

echo "engine  $ENGINE $(engine version --format '{{.Client.Version}}')"
started=$SECONDS
check "the image builds${bin_dir:+ around the programs of $bin_dir}" build_image "$TAG" "$bin_dir"
echo "        $(image_megabytes "$TAG") MB, of which the base is $(image_megabytes "$BASE_IMAGE"); $((SECONDS - started)) s"

# The client on this side of the container's wall.
ATTNCTL=${bin_dir:-$WORK}/attnctl
make_network

# ---- What is in the image.
# As root, which sees every folder.
in_image() { engine run --rm --user 0 --no-healthcheck --network none --entrypoint sh "${HARDENED[@]}" "$TAG" -c "$1"; }
check "it holds no compiler, no make, no package lists" in_image \
  'for tool in cc gcc g++ c++ clang cpp ld as make cmake ninja git; do command -v $tool && exit 1; done; [ -z "$(ls /var/lib/apt/lists)" ]'
check "it holds no program with set-uid or set-gid bits" in_image '[ -z "$(find / -xdev -type f -perm /6000)" ]'
check "every shared library of the three programs is there" in_image \
  'ldd /usr/local/bin/attnd /usr/local/bin/attnctl /usr/local/bin/attnload >&2 && ! ldd /usr/local/bin/* | grep "not found"'

# ---- It serves, with no rights.
start
check "it turns healthy" poll 20 healthy
check "attnd --probe in it says so too" engine exec "$NAME" /usr/local/bin/attnd --probe
[ -n "$bin_dir" ] || engine cp "$NAME:/usr/local/bin/attnctl" "$ATTNCTL"
check "it runs as uid 10001, with no capability, no new privileges, seccomp on" engine exec "$NAME" sh -c '
  cat /proc/1/status
  grep -Eq "^Uid:\s10001\s10001\s10001\s10001" /proc/1/status && grep -Eq "^CapBnd:\s0+$" /proc/1/status &&
  grep -Eq "^NoNewPrivs:\s1" /proc/1/status && grep -Eq "^Seccomp:\s2" /proc/1/status'
check "its memory and number of processes are limited" sh -c "
  [ '$(engine inspect --format '{{.HostConfig.Memory}} {{.HostConfig.PidsLimit}}' "$NAME")' = '1073741824 256' ]"
check "nobody in it can write to its root" refused engine exec --user 0 "$NAME" sh -c 'echo x >/usr/local/bin/x || echo x >/x'
check "an attention call from outside is right against fp64" attention --verify
echo "        $(cat "$WORK/check.log")"
check "/readyz says 200" answers /readyz 200
check "/livez says 200" answers /livez 200
check "/metrics counts the call" sh -c "[ '$(http /metrics | grep -c '^attnd_requests_finished_total.*OK.* 1$')' = 1 ]"

# ---- It drains, on a quota of one processor.
limits+=(--cpus 1)
start --listen=0.0.0.0:7070 --http_listen=0.0.0.0:7071 --insecure_listen --drain_delay_ms=1000 --drain_timeout_ms=60000
check "it turns healthy with flags of the caller's" poll 20 healthy
check "it runs one thread, as the quota allows" one_processor
# Some seconds of work for one processor.
/usr/bin/python3 - "$WORK/long.npy" <<'PY'
import sys, numpy
numpy.save(sys.argv[1], numpy.random.default_rng(0).standard_normal((1, 8, 10240, 64), dtype=numpy.float32))
PY
in_network "$ATTNCTL" run --server "$GRPC" --q "$WORK/long.npy" --k "$WORK/long.npy" --v "$WORK/long.npy" --json >"$WORK/long.json" &
long_call=$!
check "a long call is in flight" poll 20 has_in_flight
engine kill --signal TERM "$NAME" >/dev/null
check "after SIGTERM it is not ready (404)" poll 5 answers /readyz 404
check "while the call is still in flight" has_in_flight
check "the call completes" wait "$long_call"
check "the container exits with 0" poll 30 exited_with_0

# ---- It refuses to be open by accident.
start --listen=0.0.0.0:7070 --http_listen=0.0.0.0:7071
check "without --insecure_listen it does not listen beyond loopback" poll 20 exited_with_error
check "and names the flag" log_says insecure_listen

echo "$checks checks passed in $((SECONDS - started)) s"
