"""`make loadtest`, with short steps: the table, the page, and that the last steps are beyond what the server can do."""

import json
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN_DIR = pathlib.Path(os.environ.get("ATTND_BIN_DIR", ROOT / "build/release/bin"))


def test_sweeps_beyond_saturation(tmp_path):
    done = subprocess.run([ROOT / "tests/load/loadtest.sh", BIN_DIR, tmp_path / "out"], capture_output=True, text=True, timeout=280, check=False,
                          env={**os.environ, "LOADTEST_DURATION": "1s"})  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "out/report.html").read_text()
    data = json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S).group(1))
    rows = data["rows"]
    assert [row["mode"] for row in rows] == ["closed"] + 7 * ["open"]
    assert [round(row["rate_per_s"] / rows[0]["answered_per_s"], 2) for row in rows[1:]] == [0.25, 0.5, 0.75, 0.9, 1, 1.25, 1.75]
    for row in rows:
        assert row["sent"] == row["answered"] + row["failed"] + row["cancelled"] + row["lost"]
        assert row["lost"] == row["wrong"] == 0
        assert set(row["failed_by_code"]) <= {"RESOURCE_EXHAUSTED"}
        assert f'{row["answered_per_s"]:.1f}' in done.stdout
    assert sum(row["verified"] for row in rows) > 0


def test_says_what_is_missing(tmp_path):
    done = subprocess.run([ROOT / "tests/load/loadtest.sh", tmp_path], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and f"{tmp_path}/attnd is not there" in done.stderr
