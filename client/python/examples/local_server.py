"""An attnd for as long as an example runs."""

import contextlib
import pathlib
import subprocess
import tempfile
import time

import attnd

PATIENCE_S = 60


@contextlib.contextmanager
def serve(binary):
    """Starts `binary` on free loopback ports; gives its address, the path of its side socket, and its pid."""
    with tempfile.TemporaryDirectory() as folder:
        ports, log = pathlib.Path(folder) / "ports", pathlib.Path(folder) / "log"
        with open(log, "wb") as out:
            process = subprocess.Popen(
                [binary, "--listen=127.0.0.1:0", "--http_listen=127.0.0.1:0", f"--port_file={ports}",
                 f"--local_socket={folder}/side.sock", "--drain_delay_ms=0"], stdout=out, stderr=out,
            )  # fmt: skip
        try:
            end = time.monotonic() + PATIENCE_S
            while not ports.exists():
                if process.poll() is not None or time.monotonic() > end:
                    raise SystemExit(f"{binary} did not start:\n{log.read_text()}")
                time.sleep(0.01)
            yield f"127.0.0.1:{ports.read_text().split()[0]}", f"{folder}/side.sock", process.pid
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


@contextlib.contextmanager
def client_of(arguments):
    """(client, pid of the server): of the server named by --server (then None), or of one started from --attnd."""
    if arguments.attnd is None:
        with attnd.Client(arguments.server) as client:
            yield client, None
    else:
        with serve(arguments.attnd) as (address, side_socket, pid):
            with attnd.Client(address, local_socket=side_socket) as client:
                yield client, pid


def add_arguments(parser):
    parser.add_argument("--server", default="127.0.0.1:7070", help="address of a running attnd")
    parser.add_argument("--attnd", help="start this attnd instead, for as long as the example runs")
