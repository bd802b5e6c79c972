"""A server at four fifths of what it can do, whose callers are killed at random: nothing adds up wrong, nothing grows."""

import random
import time

from attnd_process import wait_until
from scenario import Load, assert_only_these_ran, by_code, cpu_seconds, finished, is_idle, load, rss_bytes, seconds, serving, undisturbed

KIND = ("--q_heads=2", "--q_len=512", "--dtype=bfloat16")  # about 2 ms on a processor of 2026
STEADY, VICTIMS = 0.6, 0.2  # of capacity
CI_SECONDS = 12
BUSY = 0.9  # of its processor: a server that has as much to do is not asked for more

# Of the steady caller's calls. Four fifths of what the server could do when that was measured, for two seconds, are at times more than it can on a virtual
# machine: in 30 minutes of 85 % use on average 0.3 % were refused, in 12 seconds of another machine 1.6 %.
ANSWERED, ANSWERED_SHORT = 0.99, 0.9


def test_callers_killed_at_random(tmp_path):
    undisturbed(lambda percentile: soak(tmp_path, seconds("ATTND_SOAK_SECONDS", CI_SECONDS), is_disturbed=percentile != "p99_us"))


def soak(folder, duration_s, is_disturbed):
    chance = random.Random(11)
    with serving(folder, "--max_queue_ms=500") as server:
        capacity = load(server, *KIND, "--concurrency=8", "--duration=2s")
        rate = capacity["answered_per_s"]
        full = load(server, *KIND, f"--rate={3 * rate:.1f}", "--duration=2s")
        most = memory(server)  # a full queue's
        began, used = time.monotonic(), cpu_seconds(server)
        steady = Load(server, *KIND, f"--rate={STEADY * rate:.1f}", f"--duration={duration_s}s", "--verify=0.02")
        samples = []
        while steady.process.poll() is None:
            victim = Load(server, *KIND, f"--rate={VICTIMS * rate:.1f}", "--burst=4", "--connections=2", "--duration=1h")
            time.sleep(chance.uniform(0.1, 0.9))  # a victim's life
            victim.kill()
            samples.append(memory(server))
        busy = (cpu_seconds(server) - used) / (time.monotonic() - began)
        row = steady.row()
        wait_until(lambda: is_idle(server), "idle")
        counts = by_code(finished(server))
        rss, arena = (max(values) / before for values, before in zip(zip(*samples), most))
        print(f"{len(samples)} killed, {counts}, {most[0] >> 20} MiB resident, of that {rss:.3f}, of the arena {arena:.3f}, busy {busy:.2f}")
        assert len(samples) > duration_s / 2
        assert counts["OK"] >= row["answered"] + full["answered"] + capacity["answered"]
        assert set(counts) <= {"OK", "CANCELLED", "RESOURCE_EXHAUSTED"} and row["verified"] > 0
        assert_only_these_ran(server)
        assert rss <= 1.05 and arena <= 1.05
        assert set(row["failed_by_code"]) <= {"RESOURCE_EXHAUSTED"}
        answered = ANSWERED if duration_s >= 60 else ANSWERED_SHORT
        assert is_disturbed or busy >= BUSY or row["answered"] >= answered * row["sent"], row


def memory(server):
    """Resident, and of the arena what was ever used."""
    return rss_bytes(server), server.metric("attnd_pool_kept_bytes ")
