"""Servers and callers on processors of their own, what both counted, and what else the machine was doing."""

import contextlib
import json
import os
import pathlib
import re
import subprocess

from attnd_process import BIN_DIR, PATIENCE_S, Attnd, pinned, wait_until

SERVER_CORE, CLIENT_CORE = 0, 1

# Of the processors, what others may use before a measured scenario that failed counts as disturbed.
BUSY_SHARE = 0.05

# A call that a device has computed, or has begun to, ends in one of these.
SINCE_THE_RUN = ("run", "download", "done")


class Load:
    """attnload under way, on the callers' processor. A step is not warmed up, a call is tried once, unless `words` say otherwise."""

    def __init__(self, server, *words, address=None):
        once = [flag for flag in ("--warmup=0", "--max_tries=1") if not any(str(word).startswith(flag[:8]) for word in words)]
        self.process = subprocess.Popen(
            [*pinned(CLIENT_CORE), BIN_DIR / "attnload", "--server", address or server.address, "--local_socket=none", "--json", *once,
             *map(str, words)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def rows(self):
        """Waits for its end; a row a step, each balanced, nothing lost, nothing wrong."""
        out, error = self.process.communicate(timeout=PATIENCE_S)
        rows = [json.loads(line) for line in out.splitlines()]
        assert rows, error
        for row in rows:
            assert row["sent"] == row["answered"] + row["failed"] + row["cancelled"] + row["lost"], row
            assert row["failed"] == sum(row["failed_by_code"].values()), row
            assert row["lost"] == row["wrong"] == 0, row
        return rows

    def row(self):
        (row,) = self.rows()
        return row

    def kill(self):
        self.process.kill()
        self.process.communicate()


def load(server, *words):
    return Load(server, *words).row()


@contextlib.contextmanager
def serving(folder, *flags):
    """A server on its processor, which must end with 0 and have let go of everything before."""
    attnd = Attnd(folder, "--devices=cpu", "--drain_delay_ms=0", *flags, core=SERVER_CORE)
    try:
        yield attnd
        wait_until(lambda: is_idle(attnd), "every call has ended and holds nothing")
    finally:
        exit_code = attnd.stop()
    assert exit_code == 0, attnd.log()


def is_idle(server):
    held = ("queue_requests", "queue_bytes", "receive_used_bytes", "receive_waiting_requests", "pool_used_bytes")
    return not any(server.metric(f"attnd_{name} ") for name in held) and server.metric("attnd_requests_received_total") == sum(
        finished(server).values()
    )


def finished(server):
    """{(code, stage): calls}, as the server counts them."""
    pattern = r'^attnd_requests_finished_total\{code="(\w+)",stage="(\w+)"\} (\S+)$'
    found = re.findall(pattern, server.http("/metrics")[1], re.M)
    return {(code, stage): int(float(count)) for code, stage, count in found if float(count)}


def by_code(counts):
    codes = {}
    for (code, _), count in counts.items():
        codes[code] = codes.get(code, 0) + count
    return codes


def assert_agree(server, *rows):
    """All that a server has seen are the calls of these rows: both count the same, by code."""
    expected = {"OK": sum(row["answered"] for row in rows)}
    for row in rows:
        assert row["cancelled"] == 0, "a cancelled call may have been answered"
        for code, count in row["failed_by_code"].items():
            expected[code] = expected.get(code, 0) + count
    assert by_code(finished(server)) == {code: count for code, count in expected.items() if count}


def assert_only_these_ran(server):
    """Whatever ran ended while it did or later: nothing that ended before has run."""
    have_run = sum(count for (_, stage), count in finished(server).items() if stage in SINCE_THE_RUN)
    assert server.metric("attnd_batch_requests_sum") == have_run, finished(server)


def rss_bytes(server):
    pages = pathlib.Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(server):
    """Processor time that it has had until now."""
    return _ticks(server.process.pid) / os.sysconf("SC_CLK_TCK")


def growth(samples):
    """The most of the second half over the most of the first: 1 is flat."""
    half = len(samples) // 2
    return max(samples[half:]) / max(samples[:half])


def undisturbed(scenario):
    """Runs what measures: `scenario("p99_us")`. Where a bound does not hold while others use the processors too, once more, as
    `scenario("p50_us")`: a server that is not given its processor answers late, which is not its doing, so that the tail tells of the others;
    the median still tells a call that waits for its turn from one that waits for all."""
    before = Usage()
    try:
        return scenario("p99_us")
    except AssertionError as failure:
        others = Usage().others_since(before)
        print(f"others used {others:.0%} of the processors")
        if others < BUSY_SHARE:
            raise
        print(f"DISTURBED: once more, by the median, after {str(failure).splitlines()[0]}")
    return scenario("p50_us")


class Usage:
    """Processor time in ticks that the machine and this test with its children have used until now."""

    def __init__(self):
        fields = [int(x) for x in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        self.all = sum(fields[:8])
        self.busy = self.all - fields[3] - fields[4]  # idle, iowait
        self.own = _ticks(os.getpid(), with_reaped=True) + sum(_ticks(pid) for pid in _descendants(os.getpid()))

    def others_since(self, before):
        used = (self.busy - before.busy) - (self.own - before.own)
        return used / max(1, self.all - before.all)


def _descendants(pid):
    with contextlib.suppress(FileNotFoundError):
        for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield int(child)
            yield from _descendants(int(child))


def _ticks(pid, with_reaped=False):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(int(field) for field in fields[11 : 15 if with_reaped else 13])
    return 0


def seconds(variable, default):
    """How long a scenario is, from the environment."""
    return float(os.environ.get(variable, default))
