"""Problems as tritonclient's users would put them, and what is right for them: attention in fp64."""

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton
from reference import BOUND, attention, rel_error
from tritonclient.utils import InferenceServerException

MODEL = "attention"
DTYPES = {"FP32": np.float32, "FP16": np.float16, "BF16": ml_dtypes.bfloat16}
DATATYPES = {np.dtype(dtype): name for name, dtype in DTYPES.items()} | {np.dtype(np.int64): "INT64"}


def normal(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


def qkv(dtype=np.float32, batch=2, q_heads=6, kv_heads=2, q_len=31, kv_len=77, head_dim=48, seed=1):
    q = normal(seed, batch, q_heads, q_len, head_dim, dtype=dtype)
    k, v = (normal(seed + i, batch, kv_heads, kv_len, head_dim, dtype=dtype) for i in (1, 2))
    return q, k, v


def tensor(name, array):
    made = triton.InferInput(name, list(array.shape), DATATYPES[array.dtype])
    return made.set_data_from_numpy(array)


def inputs(q, k, v):
    return [tensor(name, array) for name, array in (("Q", q), ("K", k), ("V", v))]


def outputs(*names):
    return [triton.InferRequestedOutput(name) for name in names]


def check(result, q, k, v, **options):
    """O, and LSE where it came. Options are reference.attention's; all arrays [batch, heads, len, head_dim]."""
    want_o, want_lse = attention(q, k, v, **options)
    o, lse = result.as_numpy("O"), result.as_numpy("LSE")
    assert o.dtype == q.dtype
    check_o(o, q, want_o)
    if lse is not None:
        assert lse.dtype == np.float32
        assert rel_error(lse, want_lse) <= 2e-6


def check_o(o, q, want_o):
    assert rel_error(o, want_o) <= BOUND[q.dtype.name]


def expect_error(code, *words):
    """pytest.raises of tritonclient's error, by its gRPC code and with all of the words."""
    pattern = "".join(f"(?=[\\s\\S]*{word})" for word in words)
    return pytest.raises(InferenceServerException, match=f"StatusCode.{code}[\\s\\S]*{pattern}" if words else code)
