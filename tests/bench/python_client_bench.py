#!/usr/bin/env python3
"""The Python client beside the C++ one: the same calls to the same server, in alternating rounds.

    python_client_bench.py build/release/bin            # 4 KiB and 64 MiB, by every transport

The Python client twice: by the C++ client's library (BIN/../lib/libattnd_client_c.so, or --client_library; without one that column
is left out), and by grpcio. O in fp32 is as large as Q, head_dim 128, one key, so that the kernel's work is linear in the bytes. The C++ client is
attnload's with one caller; both keep their memory (malloc as attnd's tools set it). Medians of the rounds' medians.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HEAD_DIM = 128
# As client/tools/tool.cc sets it for attnload.
MALLOC = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_ARENA_MAX": "2",
}


def call_python(address, side_socket, transport, bytes_, duration_s):
    """In a process of its own: the median of a call, in microseconds."""
    import numpy as np

    import attnd

    q = np.random.default_rng(1).standard_normal((1, 1, bytes_ // (4 * HEAD_DIM), HEAD_DIM), dtype=np.float32)
    k = v = q[:, :, :1].copy()
    with attnd.Client(address, transport=transport, local_socket=side_socket) as client:
        times, end = [], time.perf_counter() + 1.5 * duration_s
        while time.perf_counter() < end:
            begin = time.perf_counter()
            client.attention(q, k, v)
            times.append(time.perf_counter() - begin)
    print(statistics.median(times[len(times) // 3 :]) * 1e6)  # the first third warms up


def python_us(arguments, server, transport, bytes_, library):
    child = ["--child", *server, transport, str(bytes_)]
    command = [sys.executable, __file__, arguments.bin, f"--seconds={arguments.seconds}", *child]
    environment = {**os.environ, **MALLOC, "ATTND_CLIENT_LIBRARY": library}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(done.stdout)


def cpp_us(arguments, server, transport, bytes_):
    flags = {
        "server": server[0], "local_socket": server[1], "transport": transport, "concurrency": 1,
        "dtype": "float32", "head_dim": HEAD_DIM, "q_heads": 1, "q_len": bytes_ // (4 * HEAD_DIM), "kv_len": 1,
        "warmup": f"{arguments.seconds * 500:.0f}ms", "duration": f"{arguments.seconds * 1000:.0f}ms",
    }  # fmt: skip
    command = [pathlib.Path(arguments.bin) / "attnload", "--json", *(f"--{name}={value}" for name, value in flags.items())]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["p50_us"]


def start(binary, folder):
    """(process, (address, side socket))."""
    process = subprocess.Popen(
        [binary, "--listen=127.0.0.1:0", "--http_listen=127.0.0.1:0", f"--port_file={folder}/ports",
         f"--local_socket={folder}/side.sock", "--drain_delay_ms=0"], stderr=subprocess.DEVNULL,
    )  # fmt: skip
    ports = pathlib.Path(folder) / "ports"
    while not ports.exists():
        if process.poll() is not None:
            raise SystemExit(f"{binary} did not start")
        time.sleep(0.01)
    return process, (f"127.0.0.1:{ports.read_text().split()[0]}", f"{folder}/side.sock")


def row_of(arguments, server, transport, bytes_, engines):
    rounds = [
        [cpp_us(arguments, server, transport, bytes_)]
        + [python_us(arguments, server, transport, bytes_, library) for library in engines.values()]
        for _ in range(arguments.rounds)
    ]
    cpp, *pythons = map(statistics.median, zip(*rounds))
    row = f"{bytes_:10} {transport:>9} {cpp:10.0f}"
    for column, python in enumerate(pythons, start=1):
        ratio = statistics.median(times[column] / times[0] for times in rounds)
        row += f" {python:10.0f} {python - cpp:8.0f} {ratio:6.2f}"
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", help="the folder with attnd and attnload")
    parser.add_argument("--client_library", help="libattnd_client_c.so")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a way in a round")
    parser.add_argument("--bytes", type=int, nargs="+", default=[4 << 10, 64 << 20])
    parser.add_argument("--transports", nargs="+", default=["unary", "stream", "region"])
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        address, side_socket, transport, bytes_ = arguments.child
        return call_python(address, side_socket, transport, int(bytes_), arguments.seconds)

    library = arguments.client_library or str(pathlib.Path(arguments.bin).resolve().parent / "lib/libattnd_client_c.so")
    engines = {"native": library, "grpcio": ""} if os.path.exists(library) else {"grpcio": ""}
    print(f"load {os.getloadavg()[0]:.1f}; us a call, medians of {arguments.rounds} rounds")
    heads = "".join(f" {engine:>10} {'more':>8} {'ratio':>6}" for engine in engines)
    print(f"{'bytes':>10} {'transport':>9} {'C++':>10}{heads}")
    with tempfile.TemporaryDirectory() as folder:
        process, server = start(pathlib.Path(arguments.bin) / "attnd", folder)
        try:
            for bytes_ in arguments.bytes:
                for transport in arguments.transports:
                    print(row_of(arguments, server, transport, bytes_, engines), flush=True)
        finally:
            process.terminate()
            process.wait()
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
