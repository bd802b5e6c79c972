"""batching_bench as people and programs call it: whether it measures, not what."""

import json

import bench_program


def test_all_rows_are_measured_and_batches_form(tmp_path):
    path = tmp_path / "rows.json"
    result = bench_program.run("batching_bench", "--devices=cpu", "--time_ms=200", "--rounds=1", f"--json={path}")
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 6
    rows = json.loads(path.read_text())["rows"]
    assert [row["tensors"] for row in rows] == ["brought", "brought", "in_place", "in_place"]
    for batched, single in (rows[:2], rows[2:]):
        assert batched["max_batch_problems"] == 64 and single["max_batch_problems"] == 1
        assert batched["calls_per_s"] > 0 and single["calls_per_s"] > 0
        assert batched["requests_per_batch"] > 1 and single["requests_per_batch"] == 1
        assert single["ratio_to_one_by_one"] == 1


def test_a_bound_that_is_not_met_is_a_failure():
    result = bench_program.run("batching_bench", "--devices=cpu", "--time_ms=100", "--rounds=1", "--least_in_place=1000")
    assert result.returncode == 2, result.stderr


def test_a_mistake_is_an_error():
    result = bench_program.run("batching_bench", "--devices=abacus")
    assert result.returncode != 0
    assert "abacus" in result.stderr
