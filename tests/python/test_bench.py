"""tests/bench/python_client_bench.py, as people call it."""

import os
import pathlib
import subprocess
import sys

import attnd
from attnd_process import BIN_DIR, PATIENCE_S, ROOT


def test_every_row_is_there(library_path):
    bench = ROOT / "tests/bench/python_client_bench.py"
    done = subprocess.run(
        [sys.executable, bench, BIN_DIR, "--rounds=1", "--seconds=0.1", "--bytes", "4096", f"--client_library={library_path}"],
        env={**os.environ, "PYTHONPATH": str(pathlib.Path(attnd.__file__).parents[1])},
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    head, *rows = [line.split() for line in done.stdout.splitlines()[1:-1]]
    assert head == ["bytes", "transport", "C++", "native", "more", "ratio", "grpcio", "more", "ratio"]
    assert [row[:2] for row in rows] == [["4096", transport] for transport in ("unary", "stream", "region")]
    for row in rows:
        cpp, *engines = map(float, row[2:])
        for python, _, ratio in (engines[:3], engines[3:]):
            assert cpp > 0 and python > 0 and abs(ratio - python / cpp) < 0.02
