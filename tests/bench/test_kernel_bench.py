"""kernel_bench as people and programs call it."""

import json
import os
import pathlib
import re

import pytest

import bench_program

KEYS = ["backend", "kernel", "dtype", "mask", "batch", "q_heads", "kv_heads", "q_len", "kv_len", "head_dim",
        "median_us", "tflops", "rel_error", "peak_rss_mb"]
# Relative in norm on N(0,1) inputs, as the conformance tests have them.
BOUNDS = {"f32": 2e-6, "f16": 4.5e-4, "bf16": 3.5e-3}
CMAKE_CACHE = pathlib.Path(os.environ["ATTND_BUILD_DIR"]) / "CMakeCache.txt"
SANITIZED = re.search(r"^ATTND_SANITIZE:\w+=.+$", CMAKE_CACHE.read_text(), re.M)
QUICK = ["--rounds=2", "--min_time_ms=0"]


def bench(*arguments):
    return bench_program.run("kernel_bench", *arguments)


def rows(*arguments):
    result = bench("--json", *QUICK, *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def small_cases():
    """Every dtype, mask kind and layout, on all backends but the reference."""
    return rows("--all_cases", "--filter=^(layout|alibi|softcap)/")


def test_a_row_has_exactly_the_keys(small_cases):
    assert len(small_cases) > 0
    for row in small_cases:
        assert list(row) == KEYS


def test_times_are_positive_and_errors_within_bounds(small_cases):
    for row in small_cases:
        assert row["median_us"] > 0
        assert row["tflops"] > 0
        assert row["peak_rss_mb"] > 1
        assert re.fullmatch(r"attn_fwd_(f32|f16|bf16)_d\d+_(full|causal|general)_\w+", row["kernel"])
        if "softcap" not in row["mask"]:  # some of those have another scale, and so another bound
            assert 0 < row["rel_error"] <= BOUNDS[row["dtype"]], row


def test_every_backend_runs_every_case(small_cases):
    backends = {row["backend"] for row in small_cases}
    assert backends and "reference" not in backends
    for backend in backends:
        assert sum(row["backend"] == backend for row in small_cases) * len(backends) == len(small_cases)


def test_tflops_count_the_whole_product_and_half_of_it_for_causal():
    for row in rows("--filter=^prefill/bf16_d64_"):
        flops = 4 * row["batch"] * row["q_heads"] * row["q_len"] * row["kv_len"] * row["head_dim"]
        if row["mask"] == "causal":
            flops /= 2
        assert row["tflops"] == pytest.approx(flops / row["median_us"] / 1e6)


def test_the_reference_runs_when_named():
    (row,) = rows("--all_cases", "--backend=reference", "--filter=^heads/f32_d64_h1x1_")
    assert row["backend"] == "reference"
    assert row["rel_error"] < 1e-7  # rounding to fp32 alone


def test_the_filter_searches_names_that_list_prints():
    names = bench("--list").stdout.split()
    assert len(names) == len(set(names)) > 10
    chosen = bench("--list", "--filter=^decode/.*f16").stdout.split()
    assert chosen == [name for name in names if re.search("^decode/.*f16", name)] != []
    assert len(bench("--list", "--all_cases").stdout.split()) > 300


def test_the_table_comes_last_and_names_its_recipe():
    result = bench("--all_cases", "--filter=^heads/f32_d64_h1x1_", *QUICK)
    assert result.returncode == 0 and result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0].startswith("# ")
    header = next(i for i, line in enumerate(lines) if not line.startswith("# "))
    assert lines[header].split() == ["case", "backend", "median_us", "TFLOP/s", "rel_error", "peak_rss_mb"]
    assert all(line.startswith("heads/") for line in lines[header + 1:])
    assert len(lines) > header + 1


def test_ceilings_come_with_the_rows_of_the_same_run():
    arguments = ["--all_cases", "--filter=^heads/f32_d64_h1x1_", "--ceiling", "--threads=1", "--rounds=1", "--min_time_ms=1"]
    found = json.loads(bench("--json", *arguments).stdout)
    ceilings = {row["ceiling"]: row for row in found if "ceiling" in row}
    assert ceilings["read"]["gb_per_s"] > 0.1
    assert all(row.get("tflops", 1) > 0.001 for row in ceilings.values())
    assert [row for row in found if "ceiling" not in row]
    lines = bench(*arguments).stdout.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("ceiling ")] == list(ceilings)


def test_tune_says_where_there_is_nothing_to_choose():
    arguments = ["--tune", "--backend=cpu_portable", "--tune_lengths=8", "--tune_tokens=8"]
    result = bench(*arguments)
    assert result.returncode == 0 and result.stdout == ""
    assert "cpu_portable has one configuration of each kernel" in result.stderr
    assert json.loads(bench("--json", *arguments).stdout) == []


def test_tune_has_cases_of_its_own():
    names = bench("--tune", "--list").stdout.split()
    assert len(names) == len(set(names)) == 2 * 5 * 3 * 3
    chosen = bench("--tune", "--list", "--tune_lengths=256", "--tune_tokens=1024", "--filter=/bf16_d128_").stdout.split()
    assert chosen == [f"tune/bf16_d128_h16x16_q256_kv256_{mask}_b4" for mask in ("full", "causal", "causal+window_128_-")]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--backend=abacus"], "abacus"),
        (["--tune", "--backend=abacus"], "abacus"),
        (["--tune", "--backend=cpu_portable,reference"], "names 2"),
        (["--tune", "--tune_lengths=512,none"], "none"),
        (["--tune", "--tune_tokens=0"], "tune_tokens is 0"),
        (["--tune", "--filter=no_such_case"], "no_such_case"),
        (["--filter=no_such_case"], "no_such_case"),
        (["--filter=("], "regular expression"),
        (["--rounds=0"], "rounds is 0"),
        (["--threads=-1"], "threads is -1"),
        (["stray"], "stray"),
    ],
)
def test_a_mistake_is_an_error(arguments, message):
    result = bench(*arguments)
    assert result.returncode != 0
    assert message in result.stderr
    assert result.stdout == ""


@pytest.mark.skipif(SANITIZED is not None, reason="a sanitizer's own memory is larger than the bound")
def test_memory_grows_with_the_length_not_its_square():
    """A score matrix of this length would be 256 MB, twice the bound."""
    for row in rows("--filter=^long/.*_q8192_", "--rounds=1"):
        assert row["peak_rss_mb"] < 128, row
