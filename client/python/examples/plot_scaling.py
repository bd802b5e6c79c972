#!/usr/bin/env python3
"""Time and memory of attention over the sequence length, by attnd and by numpy with its matrix of L x L scores, as a PNG.

    plot_scaling.py --attnd build/release/bin/attnd --out scaling.png

Memory is what the process had at its peak beyond what it had before: for attnd the client's and, where this program started
it, the server's, together; what both share is in there twice.
"""

import argparse
import statistics
import time

import local_server
import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

HEADS, HEAD_DIM = 4, 64
ROUNDS = 3


def numpy_attention(q, k, v):
    scores = (q @ k.swapaxes(-1, -2)) * np.float32(HEAD_DIM**-0.5)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)) @ v


class Memory:
    """The peak of resident memory of processes, beyond what it is now."""

    def __init__(self, pids):
        self.pids = pids
        for pid in pids:
            with open(f"/proc/{pid}/clear_refs", "w") as file:
                file.write("5")  # the peak is counted anew
        self.before = self._sum("VmRSS:")

    def _sum(self, name):
        total = 0
        for pid in self.pids:
            with open(f"/proc/{pid}/status") as file:
                total += sum(int(line.split()[1]) << 10 for line in file if line.startswith(name))
        return total

    def peak_bytes(self):
        return max(self._sum("VmHWM:") - self.before, 0)


def measure(attend, length, pids):
    """(median seconds, peak bytes) of attention over `length` tokens."""
    random = np.random.default_rng(length)
    q, k, v = (random.standard_normal((1, HEADS, length, HEAD_DIM)).astype(np.float32) for _ in range(3))
    memory, times = Memory(pids), []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        attend(q, k, v)
        times.append(time.perf_counter() - begin)
    return statistics.median(times), memory.peak_bytes()


def plot(rows, out):
    """rows: name -> [(length, seconds, bytes)]."""
    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4))
    for name, points in rows.items():
        lengths, seconds, bytes_ = zip(*points)
        panels[0].plot(lengths, np.array(seconds) * 1e3, marker="o", label=name)
        panels[1].plot(lengths, np.maximum(np.array(bytes_) / 2**20, 0.1), marker="o", label=name)
    for panel, title in zip(panels, ("Time (ms)", "Peak memory (MiB)")):
        panel.set(xscale="log", yscale="log", xlabel="sequence length", title=title)
        panel.set_xticks(lengths, [str(length) for length in lengths])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
        panel.legend()
    figure.suptitle(f"Attention, fp32, {HEADS} heads of {HEAD_DIM}")
    figure.tight_layout()
    figure.savefig(out, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    local_server.add_arguments(parser)
    parser.add_argument("--out", default="scaling.png")
    parser.add_argument("--max_len", type=int, default=8192, help="numpy takes 12 * heads * len^2 bytes")
    arguments = parser.parse_args()
    lengths = [2**i for i in range(8, arguments.max_len.bit_length())]

    with local_server.client_of(arguments) as (client, pid):
        ways = {
            "attnd": (client.attention, ["self"] if pid is None else ["self", pid]),
            "numpy, L x L scores": (numpy_attention, ["self"]),
        }
        rows = {name: [] for name in ways}
        for length in lengths:
            for name, (attend, pids) in ways.items():
                seconds, bytes_ = measure(attend, length, pids)
                rows[name].append((length, seconds, bytes_))
                print(f"{name:20} L {length:6} {seconds * 1e3:9.2f} ms {bytes_ / 2**20:9.1f} MiB", flush=True)
    plot(rows, arguments.out)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
