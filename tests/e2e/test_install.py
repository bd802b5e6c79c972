"""The installed client, C++ and C, as another project finds it."""

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


def test_the_examples_find_the_package_build_and_are_answered(prefix, tmp_path):
    cache = (attnd_process.BUILD_DIR / "CMakeCache.txt").read_text()
    compilers = {language: next(line.split("=", 1)[1] for line in cache.splitlines() if line.startswith(f"CMAKE_{language}_COMPILER:"))
                 for language in ("C", "CXX")}
    sanitize = next((line.split("=", 1)[1] for line in cache.splitlines() if line.startswith("ATTND_SANITIZE:")), "")
    flags = [f"-DCMAKE_{language}_FLAGS=-fsanitize={sanitize}" for language in ("C", "CXX")] if sanitize else []
    build = tmp_path / "build"
    configured = run("cmake", "-S", attnd_process.ROOT / "client/examples", "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}",
                     *(f"-DCMAKE_{language}_COMPILER={path}" for language, path in compilers.items()),
                     "-DCMAKE_BUILD_TYPE=Release", *flags)
    assert configured.returncode == 0, configured.stderr
    built = run("cmake", "--build", build)
    assert built.returncode == 0, built.stdout + built.stderr
    server = attnd_process.Attnd(tmp_path)
    try:
        answers = [run(build / program, server.address) for program in ("attention", "attention_c")]
    finally:
        server.stop()
    for asked in answers:
        assert asked.returncode == 0, asked.stderr
        assert asked.stdout.startswith("attn_fwd_f32_d64_causal_") and asked.stdout.endswith("off by 0\n")


def test_the_package_names_no_path_of_the_tree_that_it_was_built_from(prefix):
    targets = prefix.rglob("attndTargets*.cmake")
    texts = [path.read_text() for path in targets]
    assert texts and not any(str(attnd_process.ROOT) in text for text in texts)
