"""The generic CUDA kernels against fp64, and their time beside PyTorch's. Usage: generic_check.py LIBRARY [--json FILE]"""

import argparse
import json
import math
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels_ctypes import Kernels

BOUND = {torch.float32: 2e-6, torch.float16: 4.5e-4, torch.bfloat16: 3.5e-3}
# Over fewer outputs than this the norm of their rounding errors scatters: halves are judged by an emulation as well, as in
# tests/kernels/check.cc.
FEW_OUTPUTS = 512


def reference(q, k, v, causal, window, softcap, scale, alibi, rounded=None):
    """O and LSE in fp64; rows without keys are 0 and -inf. `rounded`: as a kernel does it that rounds probabilities, of which
    the largest of a row is 1, and O to this dtype."""
    q, k, v = (t.double() for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    x = scale * q @ k.transpose(-1, -2)
    if softcap:
        x = softcap * torch.tanh(x / softcap)
    q_len, kv_len = x.shape[-2:]
    i = torch.arange(q_len, device=q.device)[:, None]
    j = torch.arange(kv_len, device=q.device)[None]
    shift = kv_len - q_len
    if alibi is not None:
        x = x - alibi.double()[:, None, None] * (i + shift - j).abs()
    visible = torch.ones(q_len, kv_len, dtype=torch.bool, device=q.device)
    if causal == "top_left":
        visible &= j <= i
    if causal == "bottom_right":
        visible &= j <= i + shift
    if window[0] is not None:
        visible &= j >= i + shift - window[0]
    if window[1] is not None:
        visible &= j <= i + shift + window[1]
    x = x.masked_fill(~visible, -math.inf)
    lse = torch.logsumexp(x, -1)
    if rounded is not None:
        p = torch.exp(x - torch.where(lse == -math.inf, 0.0, x.amax(-1))[..., None])
        return ((p.to(rounded).double() @ v) / p.sum(-1, keepdim=True).clamp_min(1e-300)).to(rounded).double(), lse
    p = torch.exp(x - torch.where(lse == -math.inf, 0.0, lse)[..., None])
    return p @ v, lse


def check(kernels, dtype, batch, q_heads, kv_heads, q_len, kv_len, head_dim, causal=None, window=(None, None),
          softcap=0.0, alibi=False, odd=False, seed=0):
    g = torch.Generator("cuda").manual_seed(seed)
    pad = 3 if odd else 0

    def make(heads, length):
        t = torch.full((batch, heads, length + pad, head_dim + pad), math.nan, device="cuda", dtype=dtype)
        t = t[:, :, :length, :head_dim]
        t.copy_(torch.randn(t.shape, generator=g, device="cuda"))
        return t

    q, k, v = make(q_heads, q_len), make(kv_heads, kv_len), make(kv_heads, kv_len)
    o = torch.full_like(make(q_heads, q_len), math.nan) if not odd else make(q_heads, q_len).fill_(math.nan)
    lse = torch.full((batch, q_heads, q_len), math.nan, device="cuda")
    slopes = 2.0 ** -(8.0 * torch.arange(1, q_heads + 1, device="cuda") / q_heads) if alibi else None
    scale = 1 / math.sqrt(head_dim)
    kernels.run([kernels.task(q, k, v, o, lse, causal, window, softcap, alibi=slopes)])
    torch.cuda.synchronize()
    want, want_lse = reference(q, k, v, causal, window, softcap, scale, slopes)
    error = ((o.double() - want).norm() / want.norm().clamp_min(1e-30)).item()
    same_inf = torch.equal(torch.isinf(lse), torch.isinf(want_lse))
    finite = torch.isfinite(want_lse)
    lse_error = ((lse.double() - want_lse)[finite].abs().max().item() if finite.any() else 0.0)
    bound = BOUND[dtype]
    if dtype != torch.float32 and want.numel() < FEW_OUTPUTS:
        emulated, _ = reference(q, k, v, causal, window, softcap, scale, slopes, rounded=dtype)
        bound = max(bound, 1.5 * ((emulated - want).norm() / want.norm().clamp_min(1e-30)).item())
    ok = error <= bound and same_inf and lse_error < 2e-5 * max(1, kv_len ** 0.25)
    return ok, error, lse_error


def correctness(kernels):
    failures = []
    count = 0
    worst = {}
    masks = [dict(), dict(causal="bottom_right"), dict(causal="top_left"), dict(window=(37, 5)), dict(window=(0, 0)),
             dict(window=(100, None)), dict(softcap=30.0), dict(alibi=True), dict(causal="bottom_right", window=(50, None), softcap=20.0, alibi=True)]
    shapes = [(1, 2, 1, 128, 128), (2, 4, 2, 129, 257), (1, 6, 2, 257, 129), (1, 2, 2, 1, 300), (1, 3, 1, 64, 63), (2, 2, 1, 130, 1), (1, 1, 1, 500, 500)]
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for head_dim in (64, 128, 96, 256, 192, 32, 8, 1, 72, 100):
            for mask in masks:
                for number, shape in enumerate(shapes):
                    for odd in ((False, True) if number < 2 else (False,)):
                        args = dict(mask, odd=odd)
                        try:
                            ok, error, lse_error = check(kernels, dtype, *shape, head_dim, seed=count, **args)
                        except RuntimeError as e:
                            if len(failures) < 40:
                                failures.append((str(dtype), head_dim, shape, args, str(e)[:200]))
                            if "CUDA" in str(e) or "cuda" in str(e):
                                return count, failures, worst
                            continue
                        count += 1
                        worst[str(dtype)] = max(worst.get(str(dtype), 0), error)
                        if not ok:
                            failures.append((str(dtype), head_dim, shape, args, error, lse_error))
    return count, failures, worst


def event_time_us(run, rounds):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(rounds):
        run()
    end.record()
    end.synchronize()
    return 1000 * start.elapsed_time(end) / rounds


def timings(kernels, rows):
    out = []
    for dtype, head_dim, causal, length in rows:
        heads = 2048 // head_dim
        batch = max(1, 16384 // length)
        q, k, v = (torch.randn(batch, heads, length, head_dim, device="cuda", dtype=dtype) for _ in range(3))
        o = torch.empty_like(q)
        task = kernels.task(q, k, v, o, causal="bottom_right" if causal else None)
        stream = torch.cuda.current_stream().cuda_stream
        backend = SDPBackend.EFFICIENT_ATTENTION if dtype == torch.float32 else SDPBackend.FLASH_ATTENTION

        def ours():
            kernels.run([task], stream)

        def peer():
            with sdpa_kernel(backend):
                torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        for f in (ours, peer):
            f()
        torch.cuda.synchronize()
        flops = 4 * batch * heads * length * length * head_dim / (2 if causal else 1)
        rounds = 10 if flops < 4e12 else 3
        a, b = [], []
        for _ in range(5):
            a.append(event_time_us(ours, rounds))
            b.append(event_time_us(peer, rounds))
        a_us, b_us = statistics.median(a), statistics.median(b)
        out.append(dict(dtype=str(dtype)[6:], head_dim=head_dim, causal=causal, q_len=length, attnd_tflops=flops / a_us / 1e6,
                        peer_tflops=flops / b_us / 1e6, ratio=b_us / a_us))
        print("{dtype:9} d{head_dim:<4} {mask:6} L{q_len:<6} attnd {attnd_tflops:6.1f}  torch {peer_tflops:6.1f}  ratio {ratio:.3f}".format(
            mask="causal" if causal else "full", **out[-1]), flush=True)
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kernels", metavar="LIBRARY")
    parser.add_argument("--backend", default="cuda_generic")
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    kernels = Kernels(args.kernels, args.backend)
    count, failures, worst = correctness(kernels)
    rows = [(d, h, c, n) for d, h in ((torch.bfloat16, 128), (torch.bfloat16, 64), (torch.float16, 128), (torch.bfloat16, 256), (torch.bfloat16, 96), (torch.float32, 64), (torch.float32, 128))
            for c in (False, True) for n in ((2048, 8192) if args.quick else (512, 2048, 4096, 8192, 16384))]
    out = timings(kernels, rows)
    for f in failures[:30]:
        print("FAIL", *f)
    print(f"{count} checked, {len(failures)} failed; worst {worst}")
    if args.json:
        json.dump(dict(timings=out, failures=[str(f) for f in failures], worst=worst), open(args.json, "w"), indent=1)


if __name__ == "__main__":
    main()
