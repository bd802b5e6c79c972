"""Starts the real attnd, and asks the real tools."""

import json
import os
import pathlib
import signal
import subprocess
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN_DIR = pathlib.Path(os.environ.get("ATTND_BIN_DIR", ROOT / "build/release/bin")).absolute()
BUILD_DIR = pathlib.Path(os.environ.get("ATTND_BUILD_DIR", BIN_DIR.parent))
DATA_DIR = ROOT / "tests/data"

# Far beyond what anything here takes, on a slow and busy machine and with sanitizers too.
PATIENCE_S = 120


class Attnd:
    """A server on free loopback ports; `stop()` drains it. `core`: the processor it is pinned to; None: any."""

    def __init__(self, folder, *flags, core=None):
        port_file = pathlib.Path(folder) / "ports"
        port_file.unlink(missing_ok=True)
        self.log_path = pathlib.Path(folder) / "attnd.log"
        self._log = open(self.log_path, "wb")
        self.process = subprocess.Popen(
            [*pinned(core), BIN_DIR / "attnd", "--listen=127.0.0.1:0", "--http_listen=127.0.0.1:0", "--local_socket=none",
             f"--port_file={port_file}", *flags],
            stdout=self._log,
            stderr=self._log,
        )
        wait_until(lambda: port_file.exists() or self.process.poll() is not None, "attnd is ready")
        assert self.process.poll() is None, self.log()
        grpc_port, http_port = port_file.read_text().split()
        self.address = f"127.0.0.1:{grpc_port}"
        self.http_address = f"127.0.0.1:{http_port}"

    def log(self):
        return self.log_path.read_text(errors="replace")

    def http(self, path):
        """(status code, body)."""
        try:
            with urllib.request.urlopen(f"http://{self.http_address}{path}", timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, prefix):
        """The sum of the samples whose line begins with `prefix`."""
        lines = self.http("/metrics")[1].splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(prefix))

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def stop(self):
        """Drains; the exit code."""
        if self.process.poll() is None:
            self.terminate()
        return self.wait()

    def wait(self):
        """For the end of a server that was told to terminate (a second signal would cut it short)."""
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()
            self._log.close()


def pinned(core):
    """What begins a command line that runs on that processor alone."""
    return [] if core is None else ["taskset", "-c", str(core)]


def wait_until(condition, what):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"timed out: {what}"
        time.sleep(0.01)


def tool(name, *words):
    """Runs attnctl or attnload to its end."""
    return subprocess.run(
        [BIN_DIR / name, *map(str, words)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def tool_json(name, *words):
    """The one JSON object that it prints; it must succeed."""
    done = tool(name, *words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)
