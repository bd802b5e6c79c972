"""The CPU kernels beside PyTorch's on the same tensors, in one run. Usage: cpu_peers.py LIBRARY [--threads N] [--json FILE]

README.md beside this tells what is compared, and how. Needs torch; everything but main() works without it.
"""

import argparse
import contextlib
import dataclasses
import datetime
import json
import math
import pathlib
import re
import statistics
import subprocess
import sys
import time

IMPLS = ("attnd", "torch")
TOKENS = 4096  # of a call: batch follows from the length
WIDTH = 1024  # heads x head_dim
MIN_ROUND_S = 0.05
REST_S = 0.01  # OpenMP's threads keep their processors for some 4 ms after a call


@dataclasses.dataclass(frozen=True)
class Shape:
    kind: str  # "prefill", "long", "decode", "small"
    dtype: str
    batch: int
    q_heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    causal: bool = False

    @property
    def name(self):
        mask = "causal" if self.causal else "full"
        return f"{self.kind}/{self.dtype}_d{self.head_dim}_{mask}_b{self.batch}_h{self.q_heads}x{self.kv_heads}_q{self.q_len}_kv{self.kv_len}"

    def flops(self):
        whole = 4 * self.batch * self.q_heads * self.q_len * self.kv_len * self.head_dim
        return whole / 2 if self.causal else whole

    def kv_bytes(self):
        return 2 * self.batch * self.kv_heads * self.kv_len * self.head_dim * (4 if self.dtype == "fp32" else 2)


def all_shapes():
    shapes = [Shape("small", dtype, 1, 8, 8, 64, 64, 64) for dtype in ("bf16", "fp16", "fp32")]
    for dtype in ("bf16", "fp16", "fp32"):
        for head_dim in (64, 128):
            heads = WIDTH // head_dim
            for causal in (False, True):
                for length in (512, 1024, 2048, 4096):
                    shapes.append(Shape("prefill", dtype, TOKENS // length, heads, heads, length, length, head_dim, causal))
    for length in (1024, 2048, 4096, 8192, 16384):
        shapes.append(Shape("long", "bf16", 1, 2, 2, length, length, 128))
    for dtype, batch in (("bf16", 16), ("fp32", 8)):  # 1 GiB of K and V
        shapes.append(Shape("decode", dtype, batch, 32, 8, 1, 16384, 128))
    return shapes


def row(impl, shape, median_s, rel_error):
    return {"impl": impl, "name": shape.name, **dataclasses.asdict(shape), "median_us": median_s * 1e6,
            "tflops": shape.flops() / median_s / 1e12, "kv_gb_per_s": shape.kv_bytes() / median_s / 1e9, "rel_error": rel_error}


def alternate(runs, rounds, clock=time.perf_counter, rest=time.sleep):
    """{name: median seconds of one call}: every run once a round, another one first in each; short ones repeated in it, after a call that wakes the threads."""
    def timed(run, count):
        start = clock()
        for _ in range(count):
            run()
        return (clock() - start) / count

    counts = {}
    for name, run in runs.items():
        run()
        counts[name] = max(1, math.ceil(MIN_ROUND_S / max(timed(run, 1), 1e-9)))
    times = {name: [] for name in runs}
    order = list(runs)
    for number in range(rounds):
        first = number % len(order)
        for name in order[first:] + order[:first]:
            rest(REST_S)
            if counts[name] > 1:
                runs[name]()
            times[name].append(timed(runs[name], counts[name]))
    return {name: statistics.median(found) for name, found in times.items()}


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(v) for v in values))


def ratios(rows):
    """{name: attnd's rate over torch's}, of shapes that both ran."""
    by_name = {}
    for r in rows:
        by_name.setdefault(r["name"], {})[r["impl"]] = r["median_us"]
    return {name: t["torch"] / t["attnd"] for name, t in by_name.items() if set(IMPLS) <= set(t)}


def summary_lines(data):
    found = ratios(data["rows"])
    for kind, dtype in (("prefill", "bf16"), ("prefill", "fp16"), ("prefill", "fp32"), ("decode", "bf16"), ("decode", "fp32")):
        for mask in ("full", "causal"):
            group = [ratio for name, ratio in found.items() if re.match(rf"{kind}/{dtype}_d\d+_{mask}_", name)]
            if group:
                yield f"{kind} {dtype} {mask}: attnd over torch {geometric_mean(group):.2f} (geometric mean of {len(group)}, least {min(group):.2f})"
    small = [r for r in data["rows"] if r["kind"] == "small"]
    for r in small:
        yield f"{r['name']}: {r['impl']} {r['median_us']:.1f} us"
    long = [r["tflops"] for r in data["rows"] if r["kind"] == "long" and r["impl"] == "attnd"]
    if long:
        yield f"long bf16 D128: attnd {min(long):.3f} to {max(long):.3f} TFLOP/s"
    for ceiling in data["ceilings"]:
        yield "ceiling " + ", ".join(f"{key} {value}" for key, value in ceiling.items())


def markdown(data):
    lines = ["| shape | attnd | torch | attnd over torch | error, attnd | torch |", "|---|---|---|---|---|---|"]
    found = ratios(data["rows"])
    by_name = {}
    for r in data["rows"]:
        by_name.setdefault(r["name"], {})[r["impl"]] = r
    for name, impls in by_name.items():
        rate = {i: f"{r['kv_gb_per_s']:.1f} GB/s" if r["kind"] == "decode" else f"{r['tflops']:.3f}" for i, r in impls.items()}
        error = {i: f"{r['rel_error']:.2e}" for i, r in impls.items()}
        ratio = f"{found[name]:.2f}" if name in found else "-"
        lines.append(f"| {name} | {rate.get('attnd', '-')} | {rate.get('torch', '-')} | {ratio} | "
                     f"{error.get('attnd', '-')} | {error.get('torch', '-')} |")
    return "\n".join(lines) + "\n"


def ceilings_of(kernel_bench, threads):
    """What kernel_bench measures of the machine, at the same number of threads; [] without the program."""
    if not kernel_bench:
        return []
    command = [kernel_bench, "--ceiling", "--json", f"--threads={threads}", "--backend=cpu_portable", "--filter=^general/.*window",
               "--rounds=3", "--min_time_ms=50"]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout)
    return [r for r in rows if "ceiling" in r]


class Lab:
    """Both implementations on the same tensors."""

    def __init__(self, library, backend, threads):
        import ctypes

        import torch

        sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "gpu"))  # in a bundle all of them are one folder
        import kernels_ctypes

        self.torch = torch
        self.dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
        torch.set_num_threads(threads)
        self.kernels = kernels_ctypes.Kernels.__new__(kernels_ctypes.Kernels)
        self.kernels.lib = ctypes.CDLL(library)
        self.kernels.handle = ctypes.c_void_p()
        error = ctypes.create_string_buffer(1024)
        if self.kernels.lib.attnd_create(backend.encode(), threads, ctypes.byref(self.kernels.handle), error, len(error)):
            raise RuntimeError(f"attnd_create: {error.value.decode()}")

    def recipe(self):
        with contextlib.suppress(OSError):
            names = re.findall(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
            return {"processor": names[0] if names else "?", "processors": len(names), "torch": self.torch.__version__}
        return {"torch": self.torch.__version__}

    def measure(self, shape, impls, rounds):
        torch = self.torch
        generator = torch.Generator().manual_seed(0)

        def make(heads, length):
            return torch.randn(shape.batch, heads, length, shape.head_dim, generator=generator).to(self.dtypes[shape.dtype])

        q, k, v = make(shape.q_heads, shape.q_len), make(shape.kv_heads, shape.kv_len), make(shape.kv_heads, shape.kv_len)
        o = torch.full_like(q, math.nan)
        task = self.kernels.task(q, k, v, o, causal="bottom_right" if shape.causal else None)
        answers = {}

        def run_attnd():
            self.kernels.run([task])
            answers["attnd"] = o

        def run_torch():
            with torch.inference_mode():
                answers["torch"] = torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=shape.causal, enable_gqa=shape.q_heads != shape.kv_heads)

        runs = {"attnd": run_attnd, "torch": run_torch}
        times = alternate({impl: runs[impl] for impl in impls}, rounds)
        return [row(impl, shape, times[impl], self.error(shape, q, k, v, answers[impl])) for impl in impls]

    def error(self, shape, q, k, v, o):
        """Against fp64, in norm, over 64 rows (all, if there are fewer) from the first to the last, of the first and the last head."""
        torch = self.torch
        positions = sorted({i * (shape.q_len - 1) // 63 for i in range(64)})
        off = all_ = 0.0
        for b, h in {(0, 0), (shape.batch - 1, shape.q_heads - 1)}:
            kv = h // (shape.q_heads // shape.kv_heads)
            x = q[b, h, positions].double() @ k[b, kv].double().T / math.sqrt(shape.head_dim)
            if shape.causal:
                visible = torch.tensor(positions)[:, None] + shape.kv_len - shape.q_len >= torch.arange(shape.kv_len)[None, :]
                x = x.masked_fill(~visible, -math.inf)
            want = torch.softmax(x, dim=1) @ v[b, kv].double()
            off += (o[b, h, positions].double() - want).square().sum().item()
            all_ += want.square().sum().item()
        return math.sqrt(off / all_)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", metavar="LIBRARY", help="libattnd_kernels_c.so")
    parser.add_argument("--backend", default="", help="of attnd; default: the best one here")
    parser.add_argument("--threads", type=int, default=2, help="of both")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", metavar="REGEX", help="searched in the shapes' names; --list prints them")
    parser.add_argument("--impls", default=",".join(IMPLS), help="names, separated by commas")
    parser.add_argument("--kernel_bench", metavar="PROGRAM", help="for the machine's ceilings, at the same number of threads")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--markdown", metavar="FILE")
    parser.add_argument("--list", action="store_true", help="print the names and measure nothing")
    args = parser.parse_args(arguments)
    args.impls = args.impls.split(",")
    if unknown := set(args.impls) - set(IMPLS):
        parser.error(f"--impls: {', '.join(sorted(unknown))}: not among {', '.join(IMPLS)}")
    for name in ("threads", "rounds"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} is {getattr(args, name)}, must be at least 1")
    args.shapes = [s for s in all_shapes() if re.search(args.only, s.name)]
    if not args.shapes:
        parser.error(f"--only: nothing has {args.only} in its name")
    return args


def main():
    args = parse(sys.argv[1:])
    if args.list:
        print(*[s.name for s in args.shapes], sep="\n")
        return
    lab = Lab(args.kernels, args.backend, args.threads)
    data = {"recipe": {**lab.recipe(), "threads": args.threads, "rounds": args.rounds, "date": datetime.date.today().isoformat()},
            "rows": [], "ceilings": ceilings_of(args.kernel_bench, args.threads)}
    for shape in args.shapes:
        data["rows"] += (rows := lab.measure(shape, args.impls, args.rounds))
        print(f"{shape.name:52}", "  ".join(f"{r['impl']} {r['tflops']:.3f} TFLOP/s {r['rel_error']:.1e}" for r in rows), flush=True)
    data["ceilings"] += ceilings_of(args.kernel_bench, args.threads)
    print(*summary_lines(data), sep="\n")
    for path, text in ((args.json, json.dumps(data, indent=1)), (args.markdown, markdown(data))):
        if path:
            pathlib.Path(path).write_text(text)


if __name__ == "__main__":
    main()
