"""S39: servers that are told to end under load, alone and behind HAProxy."""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess

import pytest
from attnd_process import Attnd, wait_until
from scenario import SERVER_CORE, Load, finished

MIDDLE = ("--q_heads=1", "--q_len=1024")  # about 3 ms on a processor of 2026
LONG = ("--q_heads=8", "--kv_heads=2", "--q_len=1024")  # about 50 ms
DRAIN_DELAY_MS = 1500  # HAProxy asks ten times a second


@contextlib.contextmanager
def started(folder):
    folder.mkdir(exist_ok=True)
    server = Attnd(folder, "--devices=cpu", f"--drain_delay_ms={DRAIN_DELAY_MS}", core=SERVER_CORE)
    try:
        yield server
    finally:
        server.process.kill()  # if it has not ended


def answered(server):
    return finished(server).get(("OK", "done"), 0)


def test_alone(tmp_path):
    with started(tmp_path) as server:
        alone(server)


def alone(server):
    loads = [Load(server, *MIDDLE, "--concurrency=8", "--duration=4s"), Load(server, *LONG, "--concurrency=2", "--duration=4s")]
    wait_until(lambda: answered(server) > 20, "calls are answered")
    server.terminate()
    wait_until(lambda: server.http("/readyz")[0] == 404, "not ready")
    # Not ready first, and still serving.
    before = answered(server)
    wait_until(lambda: answered(server) > before + 10, "calls are answered during the delay")
    assert {code for code, _ in finished(server)} == {"OK"}
    assert server.wait() == 0, server.log()
    for row in (one.row() for one in loads):
        print({name: row[name] for name in ("sent", "answered", "failed_by_code", "first_error")})
        assert set(row["failed_by_code"]) == {"UNAVAILABLE"} and row["cancelled"] == 0


@pytest.mark.skipif(not shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin"), reason="haproxy is not installed (deploy/install-deps.sh)")
def test_behind_a_balancer(tmp_path):
    """One of two drains and ends, and comes to its end with calls on both: no caller sees an error."""
    with started(tmp_path / "a") as a, started(tmp_path / "b") as b, HaProxy(a, b) as address:
        calls = Load(a, *MIDDLE, "--concurrency=8", "--connections=2", "--duration=5s", address=address)
        wait_until(lambda: answered(a) > 20 and answered(b) > 20, "both answer")
        a.terminate()
        assert a.wait() == 0, a.log()
        since = answered(b)
        row = calls.row()
        print({name: row[name] for name in ("sent", "answered", "failed_by_code")}, f"by b alone: {answered(b) - since}")
        assert row["answered"] == row["sent"] and answered(b) > since + 20
        assert b.stop() == 0, b.log()


class HaProxy:
    """In front of two servers, in the foreground; entered, it is the address, once both are known to be ready."""

    def __init__(self, a, b):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        self._address = f"127.0.0.1:{port}"
        ports = {"PROXY_PORT": str(port)}
        for name, server in (("A", a), ("B", b)):
            ports[f"GRPC_PORT_{name}"] = server.address.split(":")[1]
            ports[f"HTTP_PORT_{name}"] = server.http_address.split(":")[1]
        self._environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin", **ports}

    def __enter__(self):
        config = pathlib.Path(__file__).with_name("haproxy.cfg")
        self._process = subprocess.Popen(["haproxy", "-db", "-f", config], env=self._environment)
        wait_until(self._listens, "HAProxy listens")
        return self._address

    def _listens(self):
        assert self._process.poll() is None
        host, port = self._address.split(":")
        with socket.socket() as one:
            return one.connect_ex((host, int(port))) == 0

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait()
