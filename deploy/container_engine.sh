# shellcheck shell=bash
# Sourced by container.sh, container_test.sh and compose_test.sh: which engine runs containers here, and how.
#
# Where a Docker engine answers, `engine` is docker and the rest is nothing special. Elsewhere it is podman, as root. Everything
# of it lies under build/container/ (where images stay from one run to the next) and in mount and process namespaces of the
# run's own. So when a run ends, in whatever way, the kernel takes back its containers and mounts; only empty cgroups are left,
# and they are removed. Tests put their containers into a network namespace of their own too: no port of the machine is taken,
# no bridge made, no firewall rule touched.

ATTND_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
STATE=$ATTND_ROOT/build/container
CGROUP=attnd-container
BASE_IMAGE=docker.io/library/debian:bookworm-slim

# How a container of attnd is run: it needs no privilege, no capability and no place to write.
HARDENED=(--read-only --cap-drop=all --security-opt no-new-privileges --pids-limit 256)

say() { echo "container: $*" >&2; }

# enter_sandbox SCRIPT ARGS...: called first by a script, with its own name and arguments. Returns with ENGINE set and `engine`
# ready. For podman the script is started again, in namespaces, and this call exits with its status instead of returning. Where
# there is no engine it says why and exits with 77, which tests take as skipped.
enter_sandbox() {
  if [ -n "${ATTND_SANDBOX:-}" ]; then
    ENGINE=podman
    export CONTAINERS_CONF=$STATE/containers.conf
    make_mounts
    HARDENED+=(--cgroup-parent "/$CGROUP")
    # A run that was killed has left its containers' names and layers.
    engine rm --all --force >"$STATE/rm.log" 2>&1 || { cat "$STATE/rm.log" >&2; exit 1; }
    return
  fi
  pick_engine || exit $?
  [ "$ENGINE" = podman ] || return 0
  exec 9>"$STATE/lock"
  flock --timeout 300 9 || { say "another run holds $STATE/lock"; exit 1; }
  trap remove_cgroups EXIT
  remove_cgroups
  # setpriv: the sandbox dies with this shell, even by SIGKILL. Its first process is the script, which reaps what podman leaves.
  ATTND_SANDBOX=1 setpriv --pdeathsig KILL \
    unshare --mount --propagation private --pid --fork --kill-child --mount-proc bash "$@" 9>&-
  exit $?
}

# Sets ENGINE, or says why there is none and returns 77, which tests take as skipped.
pick_engine() {
  if docker info >/dev/null 2>&1; then
    ENGINE=docker
    return
  fi
  local tool missing=()
  for tool in podman runc unshare setpriv flock; do command -v "$tool" >/dev/null || missing+=("$tool"); done
  if [ ${#missing[@]} -gt 0 ]; then
    say "skipped: no Docker engine, and not installed: ${missing[*]} (deploy/install-container-tools.sh)"
    return 77
  elif [ "$(id -u)" -ne 0 ]; then
    say "skipped: no Docker engine, and podman with limits needs root here"
    return 77
  fi
  mkdir -p "$STATE/run"
  if [ "$(stat -f -c %T "$STATE")" = overlayfs ]; then
    say "skipped: $STATE lies on an overlay file system, which cannot hold another"
    return 77
  elif ! unshare --mount --pid --net --fork true 2>/dev/null; then
    say "skipped: no right to make namespaces here"
    return 77
  fi
  ENGINE=podman
  # cgroupfs and runc work without systemd and on mixed cgroup hierarchies; podman's default limits may be above what root may set.
  cat >"$STATE/containers.conf" <<CONF
[containers]
default_ulimits = ["nofile=8192:8192", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
[network]
network_config_dir = "/run/containers/networks"
CONF
}

# Private places for what podman, runc and network plugins keep outside of the state folder.
make_mounts() {
  local place
  for place in "$STATE/run" /dev/shm /run/runc /run/netns /run/containers /var/lib/cni; do
    mkdir -p "$place"
    mount -t tmpfs tmpfs "$place"
  done
}

# engine ARGS...: docker or podman.
engine() {
  if [ "$ENGINE" = docker ]; then
    docker "$@"
  else
    podman --root "$STATE/storage" --runroot "$STATE/run/root" --tmpdir "$STATE/run/tmp" --storage-driver overlay "$@"
  fi
}

# A network of the tests' own with nothing but loopback, and what runs in it from outside of containers. Docker publishes ports.
make_network() {
  [ "$ENGINE" = docker ] || { ip netns add attnd && in_network ip link set lo up; }
}

in_network() {
  if [ "$ENGINE" = docker ]; then "$@"; else nsenter --net=/run/netns/attnd "$@"; fi
}

remove_cgroups() {
  find /sys/fs/cgroup -maxdepth 2 -type d -name "$CGROUP" -exec find {} -depth -type d -delete \; 2>/dev/null || true
}

# Makes sure that the base image is there. A registry is asked only where the machine cannot make it from its own packages.
ensure_base() {
  if [ "$ENGINE" = docker ] || engine image exists "$BASE_IMAGE"; then
    return
  fi
  if ! grep -q '^VERSION_CODENAME=bookworm' /etc/os-release || ! command -v mmdebstrap >/dev/null; then
    engine pull --quiet "$BASE_IMAGE"
    return
  fi
  say "making the base image from this machine's package sources (20 s)"
  # What makes the distribution's slim image slim: no manuals, no translations, copyrights only.
  apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Identifier: Packages' 'Origin: Debian' >"$STATE/sources.list"
  [ -s "$STATE/sources.list" ] || { say "apt knows no package lists: run apt-get update"; return 1; }
  mmdebstrap --quiet --variant=minbase --include=usr-is-merged --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    bookworm "$STATE/base.tar" "$STATE/sources.list" >"$STATE/base.log" 2>&1 ||
    { cat "$STATE/base.log" >&2; return 1; }
  engine import --quiet "$STATE/base.tar" "$BASE_IMAGE" >/dev/null
  rm -f "$STATE/base.tar"
}

# can_package BIN_DIR: 0 if the image can be made around its programs; else says why and returns 77.
can_package() {
  if ! grep -q '^VERSION_CODENAME=bookworm' /etc/os-release; then
    say "skipped: the programs of $1 are of another distribution than the image (build from the sources instead)"
    return 77
  elif [ "$ENGINE" = docker ] && ! docker buildx version >/dev/null 2>&1; then
    say "skipped: this docker has no buildx, which packages programs that are built already"
    return 77
  fi
}

# build_image TAG [BIN_DIR] (safe where errexit is off): from the sources, or with the three programs that BIN_DIR holds already.
build_image() {
  local tag=$1 bin_dir=${2:-} args=() old
  ensure_base || return
  args+=(--build-arg "VERSION=$(sed -n 's/^project(attnd VERSION \([0-9.]*\).*/\1/p' "$ATTND_ROOT/CMakeLists.txt")")
  args+=(--build-arg "REVISION=$(git -C "$ATTND_ROOT" rev-parse HEAD 2>/dev/null || echo unknown)")
  if [ -n "$bin_dir" ]; then
    rm -rf "$STATE/prebuilt"
    mkdir -p "$STATE/prebuilt/out"
    install --strip --target-directory="$STATE/prebuilt/out" "$bin_dir"/{attnd,attnctl,attnload} || return
    args+=(--build-context "build=$STATE/prebuilt")
  fi
  # The engine's network and a chroot: no bridge and no firewall rule for a build. Docker format: OCI's has no HEALTHCHECK.
  [ "$ENGINE" = docker ] || args+=(--layers --pull-never --format docker --isolation chroot)
  old=$(engine image inspect --format '{{.Id}}' "$tag" 2>/dev/null || true)
  engine build "${args[@]}" -f "$ATTND_ROOT/deploy/Dockerfile" -t "$tag" "$ATTND_ROOT" >"$STATE/build.log" 2>&1 ||
    { tail -n 60 "$STATE/build.log" >&2; return 1; }
  # An image that has lost its name to this one is of no use.
  if [ -n "$old" ] && [ "$old" != "$(engine image inspect --format '{{.Id}}' "$tag")" ]; then
    engine rmi "$old" >/dev/null 2>&1 || true
  fi
}

# image_megabytes TAG: its size with all layers.
image_megabytes() { echo $(($(engine image inspect --format '{{.Size}}' "$1") / 1000000)); }
