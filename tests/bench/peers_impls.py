"""Each of IMPLS as a function of torch tensors [batch, heads, len, head_dim]: run(n) queues n launches and returns an O."""

import contextlib
import math
import os
import pathlib
import subprocess
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import peers_triton

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "gpu"))  # in a bundle all of them are one folder
from kernels_ctypes import Kernels

SDPA = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}


def kernels_of(library, backend, variants=()):
    """{impl: Kernels}: "attnd", and "attnd@n" with the n-th configuration forced, which is chosen when a backend is created."""
    handles = {"attnd": Kernels(library, backend)}
    for variant in variants:
        os.environ["ATTND_SM90A_CONFIG"] = str(variant)
        try:
            handles[f"attnd@{variant}"] = Kernels(library, backend)
        finally:
            del os.environ["ATTND_SM90A_CONFIG"]
    return handles


def attnd_run(kernels, shape, q, k, v):
    o = torch.full_like(q, math.nan)
    task = kernels.task(q, k, v, o, causal="bottom_right" if shape.causal else None)
    stream = torch.cuda.current_stream().cuda_stream

    def run(n):
        for _ in range(n):
            kernels.run([task], stream)
        return o

    return run


def sdpa_run(impl, shape, q, k, v):
    def run(n):
        with sdpa_kernel(SDPA[impl]):
            for _ in range(n):
                o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=shape.causal, enable_gqa=shape.grouped)
        return o

    return run


def fa3_run(shape, q, k, v):
    """Its layout is [batch, len, heads, head_dim]. ImportError where it is not installed."""
    from flash_attn_interface import flash_attn_func

    q, k, v = (t.transpose(1, 2).contiguous() for t in (q, k, v))

    def run(n):
        for _ in range(n):
            o = flash_attn_func(q, k, v, causal=shape.causal)
        return (o[0] if isinstance(o, tuple) else o).transpose(1, 2)

    return run


def triton_run(shape, q, k, v, time_us):
    """With the fastest configuration for this shape."""
    o = torch.full_like(q, math.nan)

    def with_config(config):
        def run(n):
            for _ in range(n):
                peers_triton.forward(q, k, v, o, shape.causal, config)
            return o

        return run

    usable = peers_triton.usable_configs(q, k, v, o, shape.causal)
    return with_config(min(usable, key=lambda config: min(time_us(with_config(config), 2) for _ in range(2))))


def standard_steps(q, k, v, causal, dropout=0.0):
    """Attention as separate operations, as GPT-2 has it: [(name, step)], each step a function of what the one before returned."""
    scale = 1 / math.sqrt(q.shape[3])
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1) if causal else None

    def mask(scores):
        scaled = scores * scale
        return scaled if hidden is None else scaled.masked_fill(hidden, -math.inf)

    steps = [("qk", lambda _: q @ k.transpose(-2, -1)), ("mask", mask), ("softmax", lambda x: torch.softmax(x, -1))]
    if dropout:
        steps.append(("dropout", lambda p: torch.nn.functional.dropout(p, dropout)))
    return [*steps, ("pv", lambda p: p @ v)]


def standard_run(shape, q, k, v, dropout=0.0):
    steps = standard_steps(q, k, v, shape.causal, dropout)

    def run(n):
        for _ in range(n):
            x = None
            for _, step in steps:
                x = step(x)
        return x

    return run


class TritonCompilers:
    """Processes that fill Triton's cache, one a kernel; this one finds there what they compiled."""

    def __init__(self, shapes):
        kinds = sorted({(s.head_dim, s.mask) for s in shapes if "triton" in s.impls()})
        self._processes = [subprocess.Popen([sys.executable, peers_triton.__file__, str(head_dim), mask])
                           for head_dim, mask in kinds]

    def done(self):
        return all(p.poll() is not None for p in self._processes)

    def wait(self, timeout_s):
        """Ends those that took longer."""
        deadline = time.monotonic() + timeout_s
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0, deadline - time.monotonic()))
            if process.poll() is None:
                process.kill()
                process.wait()
