#!/usr/bin/env bash
# install_packages NAME PACKAGE...: installs what is missing of Debian's (or Ubuntu's) packages, and speaks as NAME. With everything
# there it asks the package index nothing and returns at once. For the install-*.sh beside it, which source this.

install_packages() {
  local name=$1 package architecture
  shift
  local missing=() sudo=()
  for package in "$@"; do
    # Of this machine's architecture, unless the name says another: both may be there.
    case "$package" in *:*) architecture=${package#*:} ;; *) architecture=$(dpkg --print-architecture) ;; esac
    dpkg-query -W -f='${Architecture} ${db:Status-Status}\n' "${package%%:*}" 2>/dev/null |
      grep -qxE "($architecture|all) installed" || missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    echo "$name: everything is installed"
    return
  fi
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "$name: not root, and no sudo: install by hand: ${missing[*]}" >&2; return 1; }
    sudo=(sudo)
  fi
  echo "$name: installing ${#missing[@]} packages: ${missing[*]}"
  case " ${missing[*]} " in *:arm64\ *) "${sudo[@]}" dpkg --add-architecture arm64 ;; esac
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  echo "$name: done"
}
