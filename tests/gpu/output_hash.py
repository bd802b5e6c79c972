"""Hashes of what a library's CUDA kernels compute, for comparing two builds of them: output_hash.py LIBRARY [BACKEND]

A line a problem: what it is, and SHA-256 over the bits of O and LSE. Every launch runs several times; the bits must not
differ between them. Lengths up to 512, every head_dim class and some between, every family, odd lengths, grouped heads.
"""

import hashlib
import itertools
import math
import sys

DTYPES = ("bfloat16", "float16")
HEAD_DIMS = (64, 96, 128, 192, 256, 40, 100, 200)
MASKS = {
    "full": {},
    "causal": {"causal": "bottom_right"},
    "causal_top_left": {"causal": "top_left"},
    "window": {"window": (37, 5)},
    "softcap": {"softcap": 30.0},
    "causal_alibi": {"causal": "bottom_right", "alibi": True},
}
# batch, q_heads, kv_heads, q_len, kv_len. Together in one launch: more tiles than multiprocessors.
SHAPES = (
    (2, 4, 2, 129, 257), (1, 6, 2, 257, 129), (3, 8, 1, 1, 300), (1, 3, 3, 64, 63), (2, 2, 1, 130, 1),
    (1, 14, 2, 500, 511), (1, 5, 5, 511, 511), (2, 16, 4, 512, 512),
)
REPEATS = 3


def problems():
    """(dtype, head_dim, mask) of every launch, in a fixed order."""
    return list(itertools.product(DTYPES, HEAD_DIMS, MASKS))


def label(dtype, head_dim, mask, shape):
    batch, q_heads, kv_heads, q_len, kv_len = shape
    return f"{dtype} d{head_dim} {mask} b{batch} h{q_heads}x{kv_heads} q{q_len} kv{kv_len}"


def make_tensors(torch, dtype, head_dim, mask, seed):
    """Q, K, V, O, LSE and ALiBi's slopes of each shape, on the GPU; the same numbers for the same seed."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, device="cuda").to(getattr(torch, dtype))

    tensors = []
    for batch, q_heads, kv_heads, q_len, kv_len in SHAPES:
        q = normal(batch, q_heads, q_len, head_dim)
        k, v = (normal(batch, kv_heads, kv_len, head_dim) for _ in range(2))
        lse = torch.empty(batch, q_heads, q_len, device="cuda")
        slopes = 2.0 ** -(8.0 * torch.arange(1, q_heads + 1, device="cuda") / q_heads)
        tensors.append((q, k, v, torch.empty_like(q), lse, slopes.float() if "alibi" in MASKS[mask] else None))
    return tensors


def run_once(torch, kernels, mask, tensors):
    """The hash of each shape's outputs, all computed by one call."""
    options = {name: value for name, value in MASKS[mask].items() if name != "alibi"}
    for _, _, _, o, lse, _ in tensors:
        o.fill_(math.nan)
        lse.fill_(math.nan)
    tasks = [kernels.task(q, k, v, o, lse, alibi=slopes, **options) for q, k, v, o, lse, slopes in tensors]
    kernels.run(tasks, torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    hashes = []
    for _, _, _, o, lse, _ in tensors:
        digest = hashlib.sha256(o.view(torch.int16).cpu().numpy().tobytes())
        digest.update(lse.cpu().numpy().tobytes())
        hashes.append(digest.hexdigest())
    return hashes


def main():
    import torch
    from kernels_ctypes import Kernels

    kernels = Kernels(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "cuda_sm90a")
    unsteady = 0
    for seed, (dtype, head_dim, mask) in enumerate(problems()):
        tensors = make_tensors(torch, dtype, head_dim, mask, seed)
        first, *others = (run_once(torch, kernels, mask, tensors) for _ in range(REPEATS))
        for i, shape in enumerate(SHAPES):
            print(label(dtype, head_dim, mask, shape), first[i])
            if any(other[i] != first[i] for other in others):
                unsteady += 1
                print("output_hash: not the same bits every time:", label(dtype, head_dim, mask, shape), file=sys.stderr)
    sys.exit(1 if unsteady else 0)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main()
