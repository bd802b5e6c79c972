#!/usr/bin/env bash
# Installs what builds the kernels for 64-bit ARM and runs them under qemu-user, on an x86-64 Debian: `make arm64`. Not part of
# install-deps.sh: building and testing attnd itself needs none of it. Safe to run twice.
set -euo pipefail

packages=(g++-aarch64-linux-gnu qemu-user libabsl-dev:arm64 libgtest-dev:arm64 libgmock-dev:arm64)

source "$(dirname "${BASH_SOURCE[0]}")/install-packages.sh"
install_packages install-arm64-tools "${packages[@]}"
