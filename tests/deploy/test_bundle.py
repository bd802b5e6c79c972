"""deploy/bundle.sh on builds made up for it."""

import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def build_of(path, filled_mb):
    """A build whose programs are /bin/true, one of them so much larger."""
    (path / "bin").mkdir(parents=True)
    (path / "lib").mkdir()
    (path / "tests").mkdir()
    for program in ("attnd", "attnctl", "attnload", "kernel_bench"):
        shutil.copy("/bin/true", path / "bin" / program)
    fill = path / "fill"
    with open(fill, "wb") as file:
        file.truncate(filled_mb * 1_000_000)
    attnd = path / "bin" / "attnd"
    subprocess.run(["objcopy", "--add-section", f".fill={fill}", attnd], check=True)
    return path


def bundle(tmp_path, filled_mb):
    command = [ROOT / "deploy" / "bundle.sh", build_of(tmp_path / "build", filled_mb), tmp_path / "bundle"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_bundle_runs_what_it_holds(tmp_path):
    packed = bundle(tmp_path, 1)
    assert packed.returncode == 0, packed.stderr
    out = tmp_path / "bundle"
    assert sorted(p.name for p in (out / "bin").iterdir()) == ["attnctl", "attnd", "attnload", "kernel_bench"]
    assert (out / "data" / "manifest.json").exists() and (out / "gpu" / "run.sh").exists()
    listed = subprocess.run([out / "run.sh", "python3", "gpu/gpu_peers.py", "no.so", "--list"], capture_output=True, text=True)
    assert "bf16_d128_causal_h16x16_L2048" in listed.stdout, listed.stderr
    assert subprocess.run([out / "run.sh", "bin/attnd"]).returncode == 0


@pytest.mark.parametrize("filled_mb, status", [(50, 0), (70, 1)])
def test_a_bundle_that_is_too_large_fails(tmp_path, filled_mb, status):
    packed = bundle(tmp_path, filled_mb)
    assert packed.returncode == status, packed.stderr
    assert ("must be below 60" in packed.stderr) == (status == 1)
