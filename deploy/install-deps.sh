#!/usr/bin/env bash
# Installs what attnd builds and tests with: Debian's (or Ubuntu's) packages only, by name.
# Safe to run twice: with everything there it asks the package index nothing and returns at once.
set -euo pipefail

packages=(
  # Build tools. clang serves the sanitizer presets and the fuzzer.
  build-essential cmake ninja-build ccache pkg-config git
  clang clang-format clang-tidy libclang-rt-14-dev
  # The API and the server.
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev
  libspdlog-dev libcpp-httplib-dev prometheus-cpp-dev nlohmann-json3-dev
  # Tests.
  libgtest-dev libgmock-dev python3 python3-numpy python3-grpcio python3-protobuf python3-pytest python3-setuptools
  python3-venv  # make python, make example
  haproxy       # tests/load
)

# Ubuntu 24.04 has a newer clang, with its runtime under that version's name.
if ! apt-cache show libclang-rt-14-dev >/dev/null 2>&1 && [ -r /etc/os-release ]; then
  . /etc/os-release
  case "${ID:-}:${VERSION_ID:-}" in
    ubuntu:24.*) packages=("${packages[@]/libclang-rt-14-dev/libclang-rt-18-dev}") ;;
  esac
fi

source "$(dirname "${BASH_SOURCE[0]}")/install-packages.sh"
install_packages install-deps "${packages[@]}"
