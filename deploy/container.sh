#!/usr/bin/env bash
# Builds and runs attnd's container where there may be no Docker engine (deploy/install-container-tools.sh brings what it needs).
#
#   deploy/container.sh build [BIN_DIR]   the image, from the sources or from BIN_DIR's attnd, attnctl and attnload
#   deploy/container.sh run [FLAGS]       attnd in the foreground, on loopback ports 7070 and 7071; Ctrl-C drains
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/container_engine.sh

TAG=localhost/attnd:latest

case "${1:-}" in
  build)
    enter_sandbox deploy/container.sh "$@"
    build_image "$TAG" "${2:-}"
    say "$TAG is built, $(image_megabytes "$TAG") MB"
    ;;
  run)
    enter_sandbox deploy/container.sh "$@"
    shift
    if [ "$ENGINE" = docker ]; then
      network=(-p 127.0.0.1:7070:7070 -p 127.0.0.1:7071:7071)
      set -- --listen=0.0.0.0:7070 --http_listen=0.0.0.0:7071 --insecure_listen "$@"
    else
      network=(--network host --no-healthcheck)
      set -- --listen=127.0.0.1:7070 --http_listen=127.0.0.1:7071 "$@"
    fi
    engine run --rm "${network[@]}" "${HARDENED[@]}" --memory "${ATTND_MEMORY:-2g}" "$TAG" "$@"
    ;;
  *)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
