"""cpu_peers.py without torch: its shapes, its way of timing, its summary."""

import json
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import cpu_peers

RATE = {"attnd": 0.6, "torch": 0.4}  # TFLOP/s


@pytest.fixture(scope="module")
def data():
    rows = [cpu_peers.row(impl, shape, shape.flops() / RATE[impl] / 1e12, 1e-3) for shape in cpu_peers.all_shapes() for impl in RATE]
    return {"recipe": {}, "rows": rows, "ceilings": [{"ceiling": "read", "gb_per_s": 20}]}


def test_names_are_unique_and_decode_reads_a_gibibyte():
    names = [s.name for s in cpu_peers.all_shapes()]
    assert len(names) == len(set(names)) > 50
    assert all(s.kv_bytes() == 2**30 for s in cpu_peers.all_shapes() if s.kind == "decode")


def test_flops_are_halved_for_causal():
    full, causal = (cpu_peers.Shape("prefill", "bf16", 1, 2, 2, 8, 8, 4, causal) for causal in (False, True))
    assert full.flops() == 2 * causal.flops() == 4 * 2 * 8 * 8 * 4


def test_rounds_alternate_with_rests_and_medians_are_of_one_call():
    now, log = [0.0], []

    def rest(seconds):
        log.append("rest")
        now[0] += seconds

    def run(name, seconds):
        def call():
            log.append(name)
            now[0] += seconds
        return call

    times = cpu_peers.alternate({"a": run("a", 0.1), "b": run("b", 0.02)}, 2, clock=lambda: now[0], rest=rest)
    assert times["a"] == pytest.approx(0.1) and times["b"] == pytest.approx(0.02)
    timed = log[4:]  # after a first call and one that is counted, of each
    a, b = ["rest", "a"], ["rest"] + ["b"] * 4  # three that are timed, after one that is not
    assert timed == a + b + b + a


def test_the_summary_tells_ratios_of_each_group(data):
    lines = list(cpu_peers.summary_lines(data))
    for dtype in ("bf16", "fp16", "fp32"):
        for mask in ("full", "causal"):
            assert any(line.startswith(f"prefill {dtype} {mask}: attnd over torch 1.50 (geometric mean of 8") for line in lines)
    assert any("ceiling read" in line for line in lines)
    table = cpu_peers.markdown(data).splitlines()
    assert len(table) == 2 + len(cpu_peers.all_shapes())
    assert "| 1.50 |" in table[-1] and "GB/s" in table[-1]


def test_a_shape_that_one_ran_has_no_ratio(data):
    alone = {**data, "rows": [r for r in data["rows"] if r["impl"] == "attnd"]}
    assert cpu_peers.ratios(alone["rows"]) == {}
    assert "| - |" in cpu_peers.markdown(alone)
    json.dumps(alone)


@pytest.mark.parametrize("arguments, message", [
    (["lib.so", "--only=nothing_like_it"], "nothing_like_it"),
    (["lib.so", "--impls=abacus"], "abacus"),
    (["lib.so", "--threads=0"], "threads is 0"),
    (["lib.so", "--rounds=0"], "rounds is 0"),
    ([], "LIBRARY"),
])
def test_a_mistake_is_an_error(arguments, message):
    result = subprocess.run([sys.executable, HERE / "cpu_peers.py", *arguments], capture_output=True, text=True, timeout=60)
    assert result.returncode != 0 and message in result.stderr
