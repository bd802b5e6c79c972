"""gpu_peers.py without a GPU: its rows, its summary, its budget, and what figures.py draws of them."""

import json
import math
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import figures
import gpu_peers
import peers_rows
import peers_summary
import svg

RATE = {"attnd": 600, "cudnn": 500, "fa2": 300, "triton": 400, "standard": 25}  # TFLOP/s
ERROR = {"attnd": 1.9e-3, "cudnn": 2e-3}
RECIPE = {"device": "a <made-up> GPU", "date": "2026-01-01"}


class FakeLab:
    """Every impl has one rate; fa3 is not installed; each shape costs a second of the clock that budget() reads."""

    forced = ()

    def __init__(self, rate=RATE):
        self.rate = rate
        self.now_s = 0.0
        self.measured = []

    def budget(self, limit_s=1e9):
        return gpu_peers.Budget(limit_s, lambda: self.now_s)

    def measure(self, shape, impls, rounds, with_error=True):
        self.now_s += 1
        self.measured.append((shape, impls, with_error))
        return [peers_rows.row(impl, shape, shape.flops() / self.rate[impl] / 1e6, ERROR.get(impl, 3e-3) if with_error else None)
                for impl in impls if impl in self.rate], {"fa3": "not installed"}

    def gpt2(self, rounds):
        steps = [("standard", s) for s in figures.OPERATIONS] + [(i, "attention") for i in ("attnd", "cudnn", "fa2")]
        return [{"impl": impl, "operation": operation, "median_us": 100.0} for impl, operation in steps]


def run(lab, budget=None, path=None, only="", impls=peers_rows.IMPLS):
    results = gpu_peers.Results(path, RECIPE)
    shapes, gpt2 = gpu_peers.chosen_shapes(only)
    gpu_peers.measure(lab, shapes, impls, 5, budget or lab.budget(), results, gpt2)
    return results.data


@pytest.fixture(scope="module")
def results():
    return run(FakeLab())


def test_shapes_are_those_asked_for():
    shapes = peers_rows.all_shapes()
    assert len(shapes) == len({s.name for s in shapes}) == 2 * 36 + 3
    for shape in shapes[:72]:
        assert shape.batch * shape.q_len == 16384 and shape.q_heads * shape.head_dim == 2048
    assert [(s.q_heads, s.kv_heads, s.q_len, s.batch) for s in shapes[72:]] == [(64, 8, 2048, 8), (64, 8, 8192, 2), (64, 8, 32768, 1)]


def test_a_row_counts_operations_and_bytes():
    shape = peers_rows.Shape("bf16", "causal", 2, 64, 8, 2048, 128)
    row = peers_rows.row("attnd", shape, 1000.0, 1e-3)
    assert tuple(row) == peers_rows.ROW_KEYS
    assert row["tflops"] == pytest.approx(4 * 2 * 64 * 2048 * 2048 * 128 / 2 / 1e-3 / 1e12)
    assert row["gb_per_s"] == pytest.approx(2 * 2 * (64 + 8 + 8 + 64) * 2048 * 128 / 1e-3 / 1e9)
    assert row["kv_len"] == row["q_len"] == 2048


@pytest.mark.parametrize("shape", peers_rows.all_shapes(), ids=lambda s: s.name)
def test_parts_fit_in_memory_and_in_the_shape(shape):
    part = shape.standard_part()
    assert part.batch * part.q_heads * part.q_len**2 <= peers_rows.STANDARD_SCORES
    assert 1 <= part.batch <= shape.batch and 1 <= part.q_heads <= shape.q_heads
    places = shape.reference_heads()
    assert places == sorted(set(places)) and places[0] == 0 and places[-1] < shape.batch * shape.q_heads
    assert len(places) == 1 or places[-1] == shape.batch * shape.q_heads - 1


def test_a_round_is_long_enough_and_short_enough():
    assert peers_rows.launches(100) == 30 and peers_rows.launches(5000) == 1 and peers_rows.launches(1) == 40


def test_everyone_is_measured_and_what_is_not_is_named(results):
    for impl, count in (("attnd", 75), ("cudnn", 75), ("fa2", 75), ("triton", 36), ("standard", 36)):
        assert sum(r["impl"] == impl for r in results["rows"]) == count, impl
    (missing,) = results["missing"]
    assert (missing["impl"], missing["why"], len(missing["shapes"])) == ("fa3", "not installed", 75)


def test_a_spent_budget_leaves_out_what_matters_least_and_says_so():
    lab = FakeLab()
    found = run(lab, lab.budget(40))
    impls_of = [set(impls) for _, impls, _ in lab.measured]
    assert len(lab.measured) == 40
    assert all({"attnd", "cudnn"} <= impls for impls in impls_of)
    counts = [sum(impl in impls for impls in impls_of) for impl in ("fa2", "triton", "standard")]
    assert counts == [34, 26, 22]
    assert sum(with_error for _, _, with_error in lab.measured) == 30
    left_out = {m["impl"]: len(m["shapes"]) for m in found["missing"] if m["why"] == "budget spent"}
    assert left_out["all"] == 75 - 40 and left_out["standard"] == 36 - 22 and left_out["error"] == 10
    assert found["gpt2"] and peers_summary.summary_lines(found)


def test_json_is_whole_after_every_shape(tmp_path):
    class Cut(FakeLab):
        def measure(self, shape, *rest):
            if shape.q_len == 2048:
                raise KeyboardInterrupt
            return super().measure(shape, *rest)

    path = tmp_path / "rows.json"
    with pytest.raises(KeyboardInterrupt):
        run(Cut(), path=path)
    assert [r["q_len"] for r in json.loads(path.read_text())["rows"] if r["impl"] == "attnd"] == [512, 1024]


def outcomes(data):
    return {m.what: m.outcome for m in peers_summary.musts(data["rows"])}


def test_musts_pass(results):
    assert set(outcomes(results).values()) == {"PASS", "PASS, aim reached"}
    assert peers_summary.musts(results["rows"])[0].value == pytest.approx(1.2)


@pytest.mark.parametrize(
    "impl, rate, what",
    [
        ("cudnn", 700, "cudnn, mean of six lengths, bf16 D128 full"),
        ("cudnn", 800, "cudnn, smallest point"),
        ("fa2", 401, "fa2, smallest point above L 1024, bf16 D128"),
        ("triton", 501, "triton, mean of six lengths, bf16 D128 causal"),
        ("standard", 31, "standard, smallest at L 16384, bf16 full"),
    ],
)
def test_musts_find_what_falls_short(impl, rate, what):
    assert outcomes(run(FakeLab({**RATE, impl: rate})))[what] == "short"


@pytest.mark.parametrize("error, outcome", [(2.0e-3, "PASS"), (2.11e-3, "short"), (math.nan, "short")])
def test_one_larger_error_is_found(results, error, outcome):
    rows = [dict(r) for r in results["rows"]]
    next(r for r in rows if r["impl"] == "attnd" and r["q_len"] == 4096)["rel_error"] = error
    assert outcomes({"rows": rows})["error over cudnn's, worst"] == outcome


def test_a_mean_of_five_lengths_is_not_one_of_six(results):
    rows = [r for r in results["rows"] if not (r["head_dim"] == 64 and r["q_len"] == 512)]
    found = outcomes({"rows": rows})
    assert found["cudnn, mean of six lengths, bf16 D64 full"] == found["cudnn, smallest point"] == "not measured"
    assert found["cudnn, mean of six lengths, bf16 D128 full"] == "PASS, aim reached"


def test_the_best_variant_is_named():
    lab = FakeLab({**RATE, "attnd@0": 500, "attnd@1": 700})
    lab.forced = ["attnd@0", "attnd@1"]
    lines = peers_summary.variant_lines(run(lab, only="bf16_d128_causal_h16x16")["rows"])
    assert len(lines) == 6 and all(line.startswith("best 1  bf16 D128") and "built in  600.0" in line for line in lines)


def test_markdown_holds_every_table(results):
    text = peers_summary.markdown(results)
    assert text.count("\n### ") == 5
    assert text.count("\n| 128 | causal | 2048 | 600 | 500 |") == 3
    widths = [{line.count("|") for line in block.splitlines() if line.startswith("|")} for block in text.split("\n### ")]
    assert all(len(found) <= 1 for found in widths)


@pytest.mark.parametrize("arguments, message", [(["--impls=abacus"], "abacus"), (["--rounds=0"], "rounds is 0"), (["--only=fp8"], "fp8"),
                                                ([f"--json={HERE}/no/rows.json"], "rows.json")])
def test_a_mistake_is_an_error_before_torch_is_loaded(arguments, message):
    result = subprocess.run([sys.executable, HERE / "gpu_peers.py", "no.so", *arguments], capture_output=True, text=True, timeout=60)
    assert result.returncode != 0 and message in result.stderr and "torch" not in result.stderr


def texts(path):
    return ["".join(e.itertext()) for e in ElementTree.parse(path).getroot().iter("{http://www.w3.org/2000/svg}text")]


def test_figures_hold_every_series(results, tmp_path):
    source = tmp_path / "rows.json"
    source.write_text(json.dumps(results))
    subprocess.run([sys.executable, HERE / "figures.py", source, tmp_path / "out"], check=True, timeout=60)
    lengths = tmp_path / "out" / "tflops_over_length.svg"
    groups = [e.get("class") for e in ElementTree.parse(lengths).getroot().iter("{http://www.w3.org/2000/svg}g")]
    assert {impl: groups.count(impl) for impl in set(groups)} == dict.fromkeys(RATE, 6)
    found = texts(lengths)
    assert {figures.SERIES[impl][0] for impl in RATE} <= set(found) and figures.SERIES["fa3"][0] not in found
    assert {f"head_dim {d}, {m}" for d in (64, 128, 256) for m in ("full", "causal")} <= set(found)
    assert "a <made-up> GPU" in found[0]
    bars = texts(tmp_path / "out" / "gpt2_attention.svg")
    assert {name for name, _ in figures.OPERATIONS.values()} <= set(bars)
    assert bars.count("100 µs") == 3 and bars.count("500 µs") == 1 and bars.count("100") == 5


def test_nothing_to_draw_is_an_error(tmp_path):
    for draw in (figures.tflops_over_length, figures.gpt2_attention):
        with pytest.raises(ValueError, match="nothing to draw"):
            draw({"rows": [], "gpt2": [], "recipe": RECIPE}, tmp_path / "x.svg")


@pytest.mark.parametrize("top, step", [(7, 2), (500, 100), (512, 200), (0.9, 0.2)])
def test_ticks_are_round_and_reach_the_top(top, step):
    marks = svg.ticks(top)
    assert marks[0] == 0 and marks[1] == pytest.approx(step) and marks[-1] >= top > marks[-2]
