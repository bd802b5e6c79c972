"""The installed C++ client, as another project finds it."""

import subprocess

import pytest

import attnd_process


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=attnd_process.PATIENCE_S)


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prefix")
    done = run("cmake", "--install", attnd_process.BUILD_DIR, "--prefix", folder, "--component", "client")
    assert done.returncode == 0, done.stderr
    return folder


def test_the_example_finds_the_package_builds_and_is_answered(prefix, tmp_path):
    cache = (attnd_process.BUILD_DIR / "CMakeCache.txt").read_text()
    compiler = next(line.split("=", 1)[1] for line in cache.splitlines() if line.startswith("CMAKE_CXX_COMPILER:"))
    sanitize = next((line.split("=", 1)[1] for line in cache.splitlines() if line.startswith("ATTND_SANITIZE:")), "")
    flags = [f"-DCMAKE_CXX_FLAGS=-fsanitize={sanitize}"] if sanitize else []
    build = tmp_path / "build"
    configured = run("cmake", "-S", attnd_process.ROOT / "client/examples", "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}",
                     f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_BUILD_TYPE=Release", *flags)
    assert configured.returncode == 0, configured.stderr
    built = run("cmake", "--build", build)
    assert built.returncode == 0, built.stdout + built.stderr
    server = attnd_process.Attnd(tmp_path)
    try:
        asked = run(build / "attention", server.address)
    finally:
        server.stop()
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.startswith("attn_fwd_f32_d64_causal_") and asked.stdout.endswith("off by 0\n")


def test_the_package_names_no_path_of_the_tree_that_it_was_built_from(prefix):
    targets = prefix.rglob("attndTargets*.cmake")
    texts = [path.read_text() for path in targets]
    assert texts and not any(str(attnd_process.ROOT) in text for text in texts)
