"""attnload against a real attnd: its counts are the server's, its rows are complete."""

import csv
import json

import pytest

from attnd_process import Attnd, tool, tool_json

SMALL = ("--q_len=32", "--q_heads=4", "--kv_heads=2", "--causal=bottom-right")
COUNTERS = 'attnd_requests_finished_total{code="'


def rows(server, *words, ok=True):
    """The JSON rows, one a step; each balances."""
    done = tool("attnload", "--server", server.address, *words, "--json")
    assert not ok or done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for row in found:
        assert row["sent"] == row["answered"] + row["failed"] + row["cancelled"] + row["lost"], row
        assert row["failed"] == sum(row["failed_by_code"].values()), row
        assert row["lost"] == 0, row
    return found


def finished_by_code(server):
    """{code: calls}, as the server counts them."""
    counts = {}
    for line in server.http("/metrics")[1].splitlines():
        if line.startswith(COUNTERS):
            code = line[len(COUNTERS) :].split('"')[0]
            counts[code] = counts.get(code, 0) + int(float(line.rsplit(" ", 1)[1]))
    return counts


def counted_meanwhile(server, run):
    before = finished_by_code(server)
    result = run()
    after = finished_by_code(server)
    return result, {code: after[code] - before.get(code, 0) for code in after if after[code] != before.get(code, 0)}


def test_one_object_a_step(server):
    result = tool_json(
        "attnload", "--server", server.address, "--concurrency", 3, "--duration", "2s", "--warmup", "200ms", *SMALL, "--verify", "0.2",
    )  # fmt: skip
    assert result["mode"] == "closed" and result["concurrency"] == 3 and result["q_shape"] == [1, 4, 32, 64]
    assert result["answered"] > 0 and result["failed"] == 0 and result["lost"] == 0
    assert result["answered_by_device"] == {"cpu": result["answered"]}
    assert result["verified"] > 0 and result["wrong"] == 0
    assert 0 < result["p50_us"] <= result["p90_us"] <= result["p99_us"] <= result["p999_us"] <= result["max_us"]
    assert sum(result["answered_by_batch_size"].values()) == result["answered"]
    for field in ("offered_per_s", "answered_per_s", "stable", "client_bound"):
        assert field in result


@pytest.mark.parametrize("words", [("--concurrency=1,4",), ("--rate=100,200",), ("--rate=50..200", "--burst=5", "--connections=3")], ids=str)
def test_counts_agree_with_the_servers(server, words):
    found, counted = counted_meanwhile(server, lambda: rows(server, *words, *SMALL, "--duration=500ms", "--warmup=100ms", "--max_tries=1"))
    assert len(found) == words[0].count(",") + 1
    assert all(row["answered"] == row["sent"] > 0 for row in found)
    assert counted == {"OK": sum(row["sent"] + row["warmup_sent"] for row in found)}


def test_failures_agree_with_the_servers_by_code(server, tmp_path):
    mix = tmp_path / "mix"
    mix.write_text("weight=2 q_len=32 priority=1\nweight=1 kv_heads=3  # refused\nweight=1 head_dim=300 q_len=4  # so is this\n")
    words = ("--mix", mix, "--q_heads=4", "--rate=200", "--duration=1s", "--warmup=0", "--max_tries=1", "--verify=0.1")
    found, counted = counted_meanwhile(server, lambda: rows(server, *words))
    (row,) = found
    assert row["kinds"] == 3 and row["wrong"] == 0 and row["verified"] > 0
    assert row["failed"] > 0 and abs(row["failed"] / row["sent"] - 0.5) < 0.2
    assert counted == {"OK": row["answered"], **row["failed_by_code"]}


def test_deadlines_and_cancels_balance(server):
    words = ("--rate=50", "--q_len=1024", "--q_heads=8", "--duration=1s", "--warmup=0", "--max_tries=1")
    (row,) = rows(server, *words, "--timeout_ms=1", ok=False)
    assert set(row["failed_by_code"]) == {"DEADLINE_EXCEEDED"}
    (row,) = rows(server, *words, "--cancel=0.5", "--cancel_after=1us")
    assert 0 < row["cancelled"] < row["sent"]


def test_overload_does_not_bend_the_rate(tmp_path):
    """Refusals by the hundred: each counted, the same here and there, and as many calls sent as were due."""
    attnd = Attnd(tmp_path, "--max_queue_requests=2", "--drain_delay_ms=0")
    try:
        words = ("--rate=400", "--arrivals=constant", "--burst=50", "--q_len=64", "--duration=1s", "--warmup=0", "--max_tries=1")
        found, counted = counted_meanwhile(attnd, lambda: rows(attnd, *words))
        (row,) = found
        assert row["sent"] + row["unsent"] == 350  # bursts at 125 ms, 250 ms, ... 875 ms
        assert row["failed_by_code"].keys() == {"RESOURCE_EXHAUSTED"} and row["answered"] > 0
        assert counted == {"OK": row["answered"], **row["failed_by_code"]}
    finally:
        exit_code = attnd.stop()
    assert exit_code == 0, attnd.log()


def test_regions(tmp_path):
    side_socket = f"--local_socket={tmp_path}/side.sock"
    attnd = Attnd(tmp_path, side_socket, "--drain_delay_ms=0")
    try:
        (row,) = rows(attnd, side_socket, "--transport=region", "--rate=50", "--duration=1s", "--warmup=0", "--q_len=300", "--connections=2",
                      "--verify=0.5")  # fmt: skip
        assert row["answered_by_transport"] == {"region": row["sent"]}
        assert row["verified"] > 0 and row["wrong"] == 0
    finally:
        exit_code = attnd.stop()
    assert exit_code == 0, attnd.log()


@pytest.mark.parametrize("transport", ["unary", "stream"])
def test_transports(server, transport):
    (row,) = rows(server, "--rate=100", "--transport", transport, "--duration=500ms", "--warmup=1ms", *SMALL, "--verify=0.5")
    assert row["answered_by_transport"] == {transport: row["answered"]}
    assert row["verified"] > 0 and row["wrong"] == 0


def test_trace(server, tmp_path):
    trace = tmp_path / "trace"
    trace.write_text("".join(f"at_ms={20 * i} q_len={8 + i % 3} kv_len=40 priority={i % 2}\n" for i in range(30)))
    found = rows(server, "--trace", trace, "--speed=2,4", "--causal=bottom-right", "--verify=1")
    assert [row["speed"] for row in found] == [2, 4]
    for row in found:
        assert row["mode"] == "trace" and row["sent"] == row["answered"] == row["verified"] == 30 and row["wrong"] == 0
        assert row["duration_s"] >= 29 * 0.02 / row["speed"]


def test_slo(server):
    """What takes some 30 ms is answered within a second at a few calls a second, and not at a hundred."""
    done = tool("attnload", "--server", server.address, "--slo=p50=1s", "--rate=100", "--arrivals=constant", "--duration=1s", "--warmup=0",
                "--q_len=1536", "--max_tries=1")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is the highest rate that held p50 within 1s" in done.stdout and ", not held" in done.stdout


def test_rates_by_capacity_as_csv(server):
    done = tool("attnload", "--server", server.address, "--rate=50%,100%", "--duration=300ms", "--warmup=1ms", *SMALL, "--csv")
    assert done.returncode == 0, done.stderr
    found = list(csv.DictReader(done.stdout.splitlines()))
    assert [row["mode"] for row in found] == ["closed", "open", "open"]
    capacity = float(found[0]["answered_per_s"])
    assert [float(row["rate_per_s"]) / capacity for row in found[1:]] == pytest.approx([0.5, 1])
    for row in found:
        assert int(row["sent"]) == sum(int(row[name]) for name in ("answered", "failed", "cancelled", "lost"))
        assert row["stable"] in ("true", "false")


def test_table_for_a_person(server):
    done = tool("attnload", "--server", server.address, "--duration=300ms", "--warmup=1ms", *SMALL, "--verify=0.5")
    assert done.returncode == 0, done.stderr
    for word in ("float16 q [1,4,32,64] kv [1,2,32,64] causal bottom-right", "offered/s", "4 callers", "against fp64, 0 wrong"):
        assert word in done.stdout


def test_mistakes(server):
    for words, part in ((["--warp", "9"], "no flag --warp"), (["--concurrency=0"], "in 1..4096"), (["--dtype=int8"], "--dtype is"),
                        (["--rate=fast"], "--rate is"), (["--slo=p99"], "--slo is"), (["--mix=/nowhere"], "no such file")):  # fmt: skip
        done = tool("attnload", *words)
        assert done.returncode == 2 and part in done.stderr
    done = tool("attnload", "--server", "127.0.0.1:1")
    assert done.returncode == 1 and "No server answers at 127.0.0.1:1" in done.stderr
    done = tool("attnload", "--server", server.address, "--duration=200ms", "--warmup=1ms", "--kv_heads=3", "--json")
    result = json.loads(done.stdout)
    assert done.returncode == 1 and result["answered"] == 0
    assert result["failed_by_code"] == {"INVALID_ARGUMENT": result["failed"]}
