"""Storms of calls that end before their time: each ends once, none runs that had ended, and the server is idle at once."""

import random
import signal
import time

from attnd_process import wait_until
from scenario import Load, assert_agree, assert_only_these_ran, by_code, finished, is_idle, load, serving

MIDDLE = ("--q_heads=1", "--q_len=1024")  # about 3 ms on a processor of 2026
BUSY = ("--q_heads=1", "--q_len=2048")  # 4 ms with AMX, 13 without: at 400 a second more than a processor can do
NARROW = ("--q_heads=1", "--head_dim=16", "--q_len=4096")  # about 10 ms, in 384 KiB
LONG = ("--q_heads=8", "--kv_heads=2", "--q_len=1024")  # about 50 ms
STOPPED_S = 1


def test_deadlines(tmp_path):
    """S22, S27, S29: a thousand calls, some with deadlines that nothing can meet, some that pass in the queue, behind calls ten times as long."""
    mix = tmp_path / "mix"
    mix.write_text("weight=3 timeout_ms=1\nweight=3 timeout_ms=10\nweight=3 timeout_ms=100\nweight=1 timeout_ms=60000 q_len=256\n")
    with serving(tmp_path) as server:
        blockers = Load(server, *LONG, "--concurrency=2", "--duration=3s")
        storm = load(server, *MIDDLE, "--mix", mix, "--rate=500", "--duration=2s", "--settle=60s")
        blocked = blockers.row()
        print({name: storm[name] for name in ("sent", "answered", "failed_by_code")}, finished(server))
        assert storm["sent"] + storm["unsent"] > 900
        assert storm["answered"] > 0 and set(storm["failed_by_code"]) == {"DEADLINE_EXCEEDED"}
        assert blocked["failed"] == 0
        wait_until(lambda: is_idle(server), "idle")
        # Those that gRPC ended at the caller before it had sent them were never here; every other is counted once.
        assert sum(finished(server).values()) <= storm["sent"] + blocked["sent"]
        assert by_code(finished(server))["OK"] >= storm["answered"] + blocked["answered"]
        assert_only_these_ran(server)
        in_queue = sum(count for (_, stage), count in finished(server).items() if stage in ("receive", "queue"))
        assert in_queue > storm["sent"] / 4, "most ended before a device had them"


def test_hopeless_deadlines(tmp_path):
    """After a time in which the kind was seen to take longer: all callers are told so, and few calls are run."""
    with serving(tmp_path) as server:
        taught = load(server, *NARROW, "--concurrency=1", "--duration=1s")
        assert taught["answered"] >= 10
        deadline_ms = max(2, int(taught["stage_mean_us"]["run"] / 1000 / 4))
        storm = load(server, *NARROW, "--rate=150", "--duration=2s", f"--timeout_ms={deadline_ms}")
        after = load(server, *NARROW, "--concurrency=1", "--duration=300ms")
        print(f"{storm['sent']} of {deadline_ms} ms:", finished(server))
        assert storm["answered"] == 0 and set(storm["failed_by_code"]) == {"DEADLINE_EXCEEDED"}
        assert after["answered"] == after["sent"] > 0, "the server is there for the next caller"
        ran = server.metric("attnd_batch_requests_sum") - taught["answered"] - after["answered"]
        assert ran <= storm["sent"] / 20, "what cannot be met is not run"
        assert server.metric('attnd_refusals_total{reason="hopeless"}') > storm["sent"] / 4


def test_cancels_and_killed_callers(tmp_path):
    """S22: calls cancelled at every moment of their lives, and callers that die with all of theirs."""
    chance = random.Random(7)
    with serving(tmp_path) as server:
        for after_ms in (1, 5, 25):
            storm = load(server, *BUSY, "--rate=400", "--duration=700ms", "--cancel=0.9", f"--cancel_after={after_ms}ms", "--settle=60s")
            assert storm["cancelled"] > 0 and storm["failed"] == 0
        for _ in range(8):
            victim = Load(server, *MIDDLE, "--concurrency=16", "--connections=4", "--duration=60s")
            begun = server.metric("attnd_requests_received_total")
            wait_until(lambda begun=begun: server.metric("attnd_requests_received_total") > begun + chance.randrange(40), "it calls")
            victim.kill()
        wait_until(lambda: is_idle(server), "idle")
        counts = by_code(finished(server))
        print(counts)
        assert set(counts) == {"OK", "CANCELLED"}
        assert_only_these_ran(server)
        after = load(server, *MIDDLE, "--concurrency=1", "--duration=300ms", "--verify=1")
        assert after["answered"] == after["sent"] == after["verified"]


def test_malformed_calls_are_failures(tmp_path):
    """S48, S51, S52: at a rate that holds whatever becomes of the calls, what is refused for its form counts as failed, here and there."""
    mix = tmp_path / "mix"
    mix.write_text("weight=1 q_len=64\nweight=1 kv_heads=3\nweight=1 head_dim=300 q_len=4\n")
    with serving(tmp_path, "--max_queue_requests=4") as server:
        row = load(server, "--q_heads=4", "--mix", mix, "--rate=500", "--arrivals=constant", "--duration=2s")
        assert row["sent"] + row["unsent"] == 999  # the first is due after 2 ms
        assert row["unsent"] <= 10, "the rate holds"
        assert abs(row["failed_by_code"].get("INVALID_ARGUMENT", 0) / row["sent"] - 2 / 3) < 0.1
        assert_agree(server, row)


def test_a_server_that_stands_still_shows_in_full(tmp_path):
    """S51: latency begins when a call was due, so that those due while a server stood still have waited for it."""
    with serving(tmp_path) as server:
        steady = Load(server, "--q_heads=1", "--q_len=64", "--rate=200", "--arrivals=constant", "--duration=3s", "--max_in_flight=8")
        wait_until(lambda: server.metric("attnd_requests_received_total") > 50, "it calls")
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(STOPPED_S)
        server.process.send_signal(signal.SIGCONT)
        row = steady.row()
        # A third of the calls were due in that second, though 8 at a time could be sent: their median waited half of it.
        assert row["p90_us"] > 0.5 * STOPPED_S * 1e6
        assert row["sent"] + row["unsent"] >= 590
        assert_agree(server, row)
