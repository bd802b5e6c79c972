"""Measures shapes on a GPU: times by events, errors against fp64."""

import math
import statistics

import torch

import peers_impls
import peers_rows
from generic_check import reference  # the folder is on the path through peers_impls

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# The GPU waits so long before a round, a launch, while the launches are queued: then it runs them without a gap. 60 us at 2 GHz.
HEAD_START_CYCLES = 120_000
# Each call moves gigabytes: five rounds of it tell no more.
STANDARD_DROPOUT = 0.1  # as GPT-2 is trained; the fused kernels have none
STANDARD_ROUNDS = 3


def time_us(run, n):
    """Of one launch, over n that follow each other."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(HEAD_START_CYCLES * (n + 1))
    start.record()
    run(n)
    end.record()
    end.synchronize()
    return 1000 * start.elapsed_time(end) / n


def repeated(step, x):
    def run(n):
        for _ in range(n):
            y = step(x)
        return y

    return run


def alternate(runs, rounds):
    """{name: median us}: every run once a round, another one first in each, so that no one always follows the same."""
    counts = {name: peers_rows.launches(time_us(run, 1)) for name, run in runs.items()}
    times = {name: [] for name in runs}
    order = list(runs)
    for number in range(rounds):
        first = number % max(1, len(order))
        for name in order[first:] + order[:first]:
            times[name].append(time_us(runs[name], counts[name]))
    return {name: statistics.median(found) for name, found in times.items()}


def inputs(shape, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)

    def make(heads):
        return torch.randn(shape.batch, heads, shape.q_len, shape.head_dim, generator=generator, device="cuda",
                           dtype=DTYPES[shape.dtype])

    return make(shape.q_heads), make(shape.kv_heads), make(shape.kv_heads)


def first_line(error):
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0][:200]


class Compared:
    """fp64's answer for the heads that Shape.reference_heads names, and how far another one is from it, in norm."""

    def __init__(self, shape, q, k, v):
        self._places = shape.reference_heads()
        group = shape.q_heads // shape.kv_heads
        # [batch x heads] in q, whose head h sees h // group: with whole groups that is place // group in k and v.
        kv_places = [place // group for place in self._places]
        self._want, _ = reference(self._pick(q, self._places), self._pick(k, kv_places), self._pick(v, kv_places),
                                  "bottom_right" if shape.causal else None, (None, None), 0.0,
                                  1 / math.sqrt(shape.head_dim), None)

    @staticmethod
    def _pick(t, places):
        return t.flatten(0, 1)[places][None]

    def error(self, o):
        got = self._pick(o, self._places).double()
        return ((got - self._want).norm() / self._want.norm()).item()


class Lab:
    def __init__(self, library, backend, variants=()):
        self._kernels = peers_impls.kernels_of(library, backend, variants)
        self.forced = [impl for impl in self._kernels if impl != "attnd"]

    def recipe(self):
        import triton

        return {"device": torch.cuda.get_device_name(), "torch": torch.__version__,
                "cudnn": torch.backends.cudnn.version(), "triton": triton.__version__}

    def warm(self, shape):
        """What peers do once a shape, cuDNN's plan above all."""
        tensors = inputs(shape)
        for impl in ("cudnn", "fa2"):
            peers_impls.sdpa_run(impl, shape, *tensors)(1)

    def _run_of(self, impl, shape, tensors):
        if impl in self._kernels:
            return peers_impls.attnd_run(self._kernels[impl], shape, *tensors)
        if impl in peers_impls.SDPA:
            return peers_impls.sdpa_run(impl, shape, *tensors)
        if impl == "fa3":
            return peers_impls.fa3_run(shape, *tensors)
        return peers_impls.triton_run(shape, *tensors, time_us)

    def measure(self, shape, impls, rounds, with_error=True):
        """(rows, {impl: why there is none}); rows of one round after the other, "standard" by itself and last."""
        tensors = inputs(shape)
        compared = Compared(shape, *tensors) if with_error else None
        runs, errors, missing = {}, {}, {}
        for impl in impls:
            if impl == "standard":
                continue
            try:
                run = self._run_of(impl, shape, tensors)
                o = run(1)
                torch.cuda.synchronize()
                errors[impl] = compared.error(o) if compared else None
                runs[impl] = run
            except (RuntimeError, ValueError, ImportError) as error:
                missing[impl] = first_line(error)
        rows = [peers_rows.row(impl, shape, us, errors[impl]) for impl, us in alternate(runs, rounds).items()]
        if "standard" in impls:
            try:
                rows.append(self._standard(shape, tensors, compared, rounds))
            except RuntimeError as error:
                missing["standard"] = first_line(error)
        return rows, missing

    @staticmethod
    def _standard(shape, tensors, compared, rounds):
        part = shape.standard_part()
        tensors = [t[:part.batch, :part.q_heads] for t in tensors]
        run = peers_impls.standard_run(part, *tensors, dropout=STANDARD_DROPOUT)
        error = None
        if compared:  # without dropout; a part has other heads
            o = peers_impls.standard_run(part, *tensors)(1)
            error = compared.error(o) if part == shape else Compared(part, *tensors).error(o)
        return peers_rows.row("standard", part, alternate({"standard": run}, min(rounds, STANDARD_ROUNDS))["standard"], error)

    def gpt2(self, rounds):
        """GPT-2 small's attention, B 8, H 12, L 1024, D 64, fp16, causal; only the separate operations have dropout."""
        shape = peers_rows.Shape("fp16", "causal", 8, 12, 12, 1024, 64)
        tensors = inputs(shape)
        x, runs = None, {}
        for name, step in peers_impls.standard_steps(*tensors, True, dropout=STANDARD_DROPOUT):
            runs["standard", name] = repeated(step, x)
            x = step(x)
        for impl in ("attnd", "cudnn", "fa2"):
            runs[impl, "attention"] = self._run_of(impl, shape, tensors)
            runs[impl, "attention"](1)
        return [{"impl": impl, "operation": operation, "median_us": us}
                for (impl, operation), us in alternate(runs, rounds).items()]
