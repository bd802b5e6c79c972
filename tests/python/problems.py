"""Problems, and what is right for them: attention in fp64 (tests/e2e/reference.py)."""

import attnd
import numpy as np
from attnd.arrays import bfloat16
from reference import BOUND, attention, rel_error


def normal(seed, *shape, dtype="float32"):
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return values.astype(bfloat16() if dtype == "bfloat16" else dtype)


def qkv(dtype="float32", batch=2, q_heads=6, kv_heads=2, q_len=31, kv_len=77, head_dim=48):
    q = normal(1, batch, q_heads, q_len, head_dim, dtype=dtype)
    k, v = (normal(seed, batch, kv_heads, kv_len, head_dim, dtype=dtype) for seed in (2, 3))
    return q, k, v


def small_problem(seed=1, **options):
    """Of a few kilobytes."""
    q = normal(seed, 1, 2, 5, 16)
    k, v = normal(seed + 1, 1, 1, 9, 16), normal(seed + 2, 1, 1, 9, 16)
    return attnd.Problem(q, k, v, **options)


def large_problem(mebibytes, **options):
    """Of so many mebibytes of Q, K and V, and little to compute: few keys."""
    q_len = mebibytes * 2**20 // (8 * 64 * 4)
    return attnd.Problem(normal(1, 1, 8, q_len, 64), normal(2, 1, 8, 4, 64), normal(3, 1, 8, 4, 64), **options)


def check(o, q, k, v, lse=None, **options):
    """Options are reference.attention's; all arrays [batch, heads, len, head_dim]."""
    want_o, want_lse = attention(q, k, v, **options)
    assert rel_error(o, want_o) <= BOUND[q.dtype.name]
    if lse is not None:
        assert lse.dtype == np.float32
        assert rel_error(lse, want_lse) <= 2e-6


def check_problem(o, problem):
    check(o, problem.q, problem.k, problem.v)
