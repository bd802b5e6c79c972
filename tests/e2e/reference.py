"""Attention in float64 with numpy: the definition in proto/attnd/v1/attnd.proto, and nothing else."""

import numpy as np

BOUND = {"float32": 2e-6, "float16": 4.5e-4, "bfloat16": 3.5e-3}


def attention(q, k, v, causal=None, window=(None, None), scale=None, softcap=0.0, slopes=None):
    """q [batch, q_heads, q_len, head_dim], k and v [batch, kv_heads, kv_len, head_dim]; (O, LSE) in float64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    q_len, kv_len = q.shape[2], k.shape[2]
    x = (scale or q.shape[3] ** -0.5) * (q @ k.swapaxes(2, 3))
    if softcap:
        x = softcap * np.tanh(x / softcap)
    i, j = np.arange(q_len)[:, None], np.arange(kv_len)[None, :]
    diagonal = i + kv_len - q_len
    if slopes is not None:
        x = x - np.asarray(slopes, np.float64)[None, :, None, None] * np.abs(diagonal - j)
    visible = np.ones((q_len, kv_len), bool)
    if causal == "top-left":
        visible &= j <= i
    if causal == "bottom-right":
        visible &= j <= diagonal
    if window[0] is not None:
        visible &= j >= diagonal - window[0]
    if window[1] is not None:
        visible &= j <= diagonal + window[1]
    x = np.where(visible, x, -np.inf)
    top = np.max(x, axis=3, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    weights = np.exp(x - top)
    total = weights.sum(axis=3, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + top)[..., 0]
    return (weights @ v) / np.where(total > 0, total, 1), lse


def rel_error(actual, expected):
    actual = np.asarray(actual, np.float64)
    assert actual.shape == expected.shape
    empty = np.isneginf(expected)
    assert (np.isneginf(actual) == empty).all()
    actual, expected = actual[~empty], expected[~empty]
    norm = np.linalg.norm(expected)
    return np.linalg.norm(actual - expected) / (norm if norm > 0 else 1)


def read_safetensors(path):
    """{name: float64 array}."""
    import json

    raw = path.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    tensors = {}
    for name, entry in json.loads(raw[8:begin]).items():
        if name == "__metadata__":
            continue
        data = raw[begin + entry["data_offsets"][0] : begin + entry["data_offsets"][1]]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
        else:
            values = np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[entry["dtype"]])
        tensors[name] = values.astype(np.float64).reshape(entry["shape"])
    return tensors
