#!/usr/bin/env bash
# Installs what builds and runs attnd's image on a machine without a Docker engine: Debian's (or Ubuntu's) packages, by name.
# Not part of install-deps.sh: building and testing attnd itself needs none of it. Safe to run twice.
set -euo pipefail

packages=(
  podman runc                                # runs containers, and builds them
  catatonit containernetworking-plugins iptables
  mmdebstrap                                 # makes the base image where no registry can be reached
  iproute2 util-linux                        # namespaces for the tests
  podman-compose dnsmasq-base golang-github-containernetworking-plugin-dnsname  # compose.yaml: services find each other by name
)

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "install-container-tools: everything is installed"
  exit 0
fi

sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install-container-tools: not root, and no sudo: install by hand: ${missing[*]}" >&2; exit 1; }
  sudo=(sudo)
fi
echo "install-container-tools: installing ${#missing[@]} packages: ${missing[*]}"
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
echo "install-container-tools: done"
