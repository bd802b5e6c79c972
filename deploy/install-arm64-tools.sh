#!/usr/bin/env bash
# Installs what builds the kernels for 64-bit ARM and runs them under qemu-user, on an x86-64 Debian: `make arm64`. Not part of
# install-deps.sh: building and testing attnd itself needs none of it. Safe to run twice.
set -euo pipefail

packages=(g++-aarch64-linux-gnu qemu-user libabsl-dev:arm64 libgtest-dev:arm64 libgmock-dev:arm64)

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "install-arm64-tools: everything is installed"
  exit 0
fi

sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install-arm64-tools: not root, and no sudo: install by hand: ${missing[*]}" >&2; exit 1; }
  sudo=(sudo)
fi
echo "install-arm64-tools: installing ${#missing[@]} packages: ${missing[*]}"
"${sudo[@]}" dpkg --add-architecture arm64
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
echo "install-arm64-tools: done"
