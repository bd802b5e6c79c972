"""deploy/demo.sh holds, and fails when something does not."""

import os
import subprocess

from attnd_process import BIN_DIR, DATA_DIR, PATIENCE_S, ROOT


def demo(bin_dir):
    return subprocess.run(
        [ROOT / "deploy/demo.sh", bin_dir], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_demo_holds():
    done = demo(BIN_DIR)
    assert done.returncode == 0, done.stdout + done.stderr
    for path in DATA_DIR.glob("*.safetensors"):
        assert path.name in done.stdout
    assert "attn_fwd_" in done.stdout


def test_demo_fails_without_programs(tmp_path):
    done = demo(tmp_path)
    assert done.returncode != 0
    assert "attnd" in done.stderr


def test_demo_fails_when_an_answer_does(tmp_path):
    """An attnctl that reports a failed check, and everything else real."""
    for name in ("attnd", "attnload"):
        os.symlink(BIN_DIR / name, tmp_path / name)
    script = tmp_path / "attnctl"
    script.write_text(f'#!/bin/sh\n"{BIN_DIR}/attnctl" "$@"\n[ "$1" != run ]\n')
    script.chmod(0o755)
    done = demo(tmp_path)
    assert done.returncode != 0
    assert "FAILED" in done.stdout
