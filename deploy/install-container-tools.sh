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

source "$(dirname "${BASH_SOURCE[0]}")/install-packages.sh"
install_packages install-container-tools "${packages[@]}"
