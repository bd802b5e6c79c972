#!/usr/bin/env bash
# Runs compose.yaml for some seconds: attnd turns healthy, attnload reaches it by its name and ends well.
#
#   deploy/compose_test.sh [DIR]     DIR holds built programs (default build/release/bin)
#
# With Docker it is `docker compose up`, as a user would type it. Without, podman-compose, whose 1.0.3 knows no
# `condition: service_healthy`, so that the script itself waits for attnd before it starts attnload.
# Exit status: 0 it ran, 1 it did not, 77 no engine or no compose here (it says why).
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/container_engine.sh
enter_sandbox deploy/compose_test.sh "$@"

export ATTND_IMAGE=localhost/attnd:test ATTNLOAD_DURATION=2s
WORK=$(mktemp -d)

skip() {
  say "skipped: $1"
  exit 77
}

if [ "$ENGINE" = docker ]; then
  docker compose version >/dev/null 2>&1 || skip "docker has no compose plugin"
else
  for tool in podman-compose dnsmasq; do
    command -v "$tool" >/dev/null || skip "no $tool (deploy/install-container-tools.sh)"
  done
  [ -x /usr/lib/cni/dnsname ] || skip "no dnsname plugin for podman's networks (deploy/install-container-tools.sh)"
fi

bin_dir=${1:-build/release/bin}
can_package "$bin_dir" || exit $?

compose() {
  if [ "$ENGINE" = docker ]; then
    docker compose -f deploy/compose.yaml "$@"
  else
    in_network podman-compose --podman-path "$WORK/podman" -p attnd -f deploy/compose.yaml "$@"
  fi
}

cleanup() {
  # The sandbox takes podman's away.
  [ "$ENGINE" = podman ] || compose down >"$WORK/down.log" 2>&1 || true
  rm -rf "$WORK"
}
trap cleanup EXIT

fail() {
  echo "FAILED  $1" >&2
  cat "$WORK"/*.log >&2
  exit 1
}

build_image "$ATTND_IMAGE" "$bin_dir" || fail "the image builds"
started=$SECONDS

if [ "$ENGINE" = docker ]; then
  compose up --no-build --exit-code-from attnload >"$WORK/up.log" 2>&1 || fail "docker compose up"
else
  make_network
  # podman-compose asks for a program; ours brings this run's options.
  cat >"$WORK/podman" <<SH
#!/bin/sh
case "\$1" in run) shift; set -- run --cgroup-parent "/$CGROUP" "\$@" ;; esac
exec podman --root "$STATE/storage" --runroot "$STATE/run/root" --tmpdir "$STATE/run/tmp" --storage-driver overlay "\$@"
SH
  chmod +x "$WORK/podman"
  compose up -d --no-build attnd >"$WORK/up.log" 2>&1 || fail "attnd starts"
  until engine healthcheck run attnd_attnd_1 >/dev/null 2>&1; do
    [ $((SECONDS - started)) -lt 20 ] || fail "attnd turns healthy"
    sleep 0.1
  done
  compose up -d --no-build attnload >>"$WORK/up.log" 2>&1 || fail "attnload starts"
  status=$(engine wait attnd_attnload_1)
  engine logs attnd_attnload_1 2>&1 | tee "$WORK/attnload.log"
  [ "$status" = 0 ] || fail "attnload ends with 0, not $status"
fi
echo "compose: attnload reached attnd by its name and ended with 0 ($((SECONDS - started)) s)"
