#!/usr/bin/env bash
# Packs a build into one folder that runs on another machine: stripped programs, tests and benches, and every shared
# library that they need but the C library's own. Needs nothing there but a Linux of the same age or newer.
#
#   deploy/bundle.sh [BUILD_DIR [OUT_DIR [DELAYS_BUILD_DIR]]]     default: build/shared, which it builds first; build/bundle
#
# DELAYS_BUILD_DIR: a build of attnd_kernels_c with ATTND_RANDOM_DELAYS, whose libraries go to lib_delays/ (tests/gpu).
# In the folder: bin/, tests/, lib/, data/, gpu/ and run.sh, which sets the library path:  ./run.sh bin/attnd --help
#
# The preset "shared" makes attnd's libraries shared, so that the device code is there once: some ten programs have it
# otherwise. Fails where the folder is larger than what is worth carrying about; it is there to look at all the same.
set -euo pipefail

limit_mb=60
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
programs=(attnd attnctl attnload kernel_bench executor_bench batching_bench transport_bench)
# The tests that gpu/run.sh runs.
tests=(conformance_test invariance_test dynamic_range_test public_failures_test registry_test cuda_device_gpu_test
  cuda_devices_gpu_test cuda_regions_gpu_test cuda_ipc_gpu_test cuda_ipc_client planted_race)
if [ $# = 0 ]; then
  (cd "$root" && cmake --preset shared && cmake --build --preset shared --target "${programs[@]}" "${tests[@]}" attnd_kernels_c attnd_client_c)
fi
build=$(cd "${1:-$root/build/shared}" && pwd)
out=${2:-$root/build/bundle}

# Ours to bring, or the target's own: the C library must be the one of the kernel that runs there, and the C++ runtime
# that a host program such as Python already loaded must not meet an older one.
is_system() { case "$(basename "$1")" in ld-linux*|libc.so*|libm.so*|libdl.so*|libpthread.so*|librt.so*) true ;; *) false ;; esac; }
is_runtime() { case "$(basename "$1")" in libstdc++.so*|libgcc_s.so*) true ;; *) false ;; esac; }

rm -rf "$out"
mkdir -p "$out"/{bin,tests,lib,runtime,data,gpu}
take() {  # take DIR FILE...: copies what exists, stripped
  local dir=$1 file
  shift
  for file in "$@"; do
    [ -f "$file" ] && [ -x "$file" ] || continue
    install -m 755 -s "$file" "$out/$dir/"
  done
}
take bin "${programs[@]/#/$build/bin/}"
take tests "${tests[@]/#/$build/tests/}"
take lib "$build"/lib/*.so
if [ $# -ge 3 ]; then
  mkdir "$out/lib_delays"
  take lib_delays "$3"/lib/libattnd_kernels*.so
  [ -e "$out/lib_delays/libattnd_kernels_c.so" ] || { echo "bundle: $3/lib has no libattnd_kernels_c.so" >&2; exit 1; }
fi
install -m 644 "$root"/tests/data/*.safetensors "$root"/tests/data/manifest.json "$out/data/"
install -m 755 "$root"/tests/gpu/*.sh "$root"/tests/gpu/*.py "$root/deploy/demo.sh" "$out/gpu/"
install -m 644 "$root"/tests/bench/{gpu_peers,peers_*}.py "$out/gpu/"

for file in "$out"/bin/* "$out"/tests/* "$out"/lib/*.so; do [ ! -f "$file" ] || ldd "$file"; done |
  awk '$2 == "=>" && $3 ~ "^/" { print $3 }' | sort -u |
  while read -r library; do
    if is_system "$library" || [ -e "$out/lib/$(basename "$library")" ]; then continue; fi
    if is_runtime "$library"; then cp -L "$library" "$out/runtime/"; else cp -L "$library" "$out/lib/"; fi
  done

cat >"$out/run.sh" <<'RUN'
#!/usr/bin/env bash
# Runs a program of this folder with this folder's libraries; the C++ runtime only where the machine's own is older.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
"$here/bin/attnctl" --help >/dev/null 2>&1 || export LD_LIBRARY_PATH=$here/runtime:$LD_LIBRARY_PATH
cd "$here" && exec "$@"
RUN
chmod +x "$out/run.sh"

mb=$(($(du -sb "$out" | cut -f1) / 1000000))
echo "bundle: $out, $mb MB, $(ls "$out/lib" | wc -l) libraries"
if [ "$mb" -ge "$limit_mb" ]; then
  echo "bundle: $mb MB, must be below $limit_mb; build with --preset shared, which has the device code once" >&2
  exit 1
fi
