"""Checks that the Q/K/V files are whole, are what the manifest says, and look like real attention."""

import hashlib
import math
import struct

import numpy as np
import pytest

import qkv

MANIFEST = qkv.load_manifest()
MAX_TOTAL_BYTES = 4_000_000
FIRST_ROW = 32  # of a causal file: rows before it see too few keys to tell anything

# Mean entropy of a row over the entropy of uniform weights: the files have 0.29 to 0.81, N(0,1) data of
# the same shapes 0.90 to 0.91.
MIN_ENTROPY, MAX_ENTROPY = 0.1, 0.85
# Mean weight of the first token over what uniform weights give it: transformers rest on their first
# token. The files have 3.6 to 81, N(0,1) data 0.9 to 1.2.
MIN_FIRST_TOKEN = 3.0


def read(row):
    return qkv.unpack((qkv.DATA_DIR / row["file"]).read_bytes())


def figures(q, k, scale, causal):
    """(relative entropy, relative weight of the first token), means over rows with enough keys."""
    weights = qkv.attention_weights(q, k, scale, causal)
    is_causal = causal == "bottom_right"
    kv_len = weights.shape[-1]
    keys = np.arange(1, kv_len + 1) if is_causal else np.full(weights.shape[-2], kv_len)
    rows = slice(FIRST_ROW if is_causal else 0, None)
    log_weights = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    entropy = -(weights * log_weights).sum(axis=-1)[..., rows] / np.log(keys[rows])
    first_token = weights[..., rows, 0].mean() / np.mean(1 / keys[rows])
    return entropy.mean(), first_token


each_file = pytest.mark.parametrize("row", MANIFEST, ids=lambda row: row["file"])


def test_manifest_lists_exactly_the_files():
    on_disk = sorted(path.name for path in qkv.DATA_DIR.glob("*.safetensors"))
    assert on_disk == [row["file"] for row in MANIFEST]
    assert {row["dtype"] for row in MANIFEST} == {"F32", "F16", "BF16"}
    assert {row["causal"] for row in MANIFEST} == {"bottom_right", "none"}


def test_total_size():
    files = [path for path in qkv.DATA_DIR.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MAX_TOTAL_BYTES


@each_file
def test_file_is_what_the_manifest_says(row):
    tensors, dtypes, metadata = read(row)
    assert list(tensors) == ["q", "k", "v"]
    assert set(dtypes.values()) == {row["dtype"]}
    assert list(tensors["q"].shape) == row["q_shape"]
    assert list(tensors["k"].shape) == list(tensors["v"].shape) == row["k_shape"]
    for name in ("model", "causal", "text", "layout"):
        assert metadata[name] == row[name]
    assert int(metadata["layer"]) == row["layer"]
    assert float(metadata["scale"]) == row["scale"]
    content = (qkv.DATA_DIR / row["file"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == row["sha256"]


@each_file
def test_shapes_are_a_valid_problem(row):
    q_batch, q_heads, _, q_dim = row["q_shape"]
    k_batch, kv_heads, _, k_dim = row["k_shape"]
    assert row["layout"] == "BHSD"
    assert (q_batch, q_dim) == (k_batch, k_dim)
    assert q_heads % kv_heads == 0
    assert row["scale"] == 1 / math.sqrt(q_dim)


@each_file
def test_text_is_beside_the_data(row):
    text = (qkv.DATA_DIR / row["text"]).read_text()
    batch, _, q_len, _ = row["q_shape"]
    assert len(text.split()) > batch * q_len / 2  # a token is at most a word, and rarely under half


@each_file
def test_values_are_finite_and_varied(row):
    for name, values in read(row)[0].items():
        assert np.isfinite(values).all(), name
        assert (values.std(axis=-2) > 0).all(), f"{name}: a channel is constant along the sequence"


@each_file
def test_attention_looks_real(row):
    tensors, _, _ = read(row)
    entropy, first_token = figures(tensors["q"], tensors["k"], row["scale"], row["causal"])
    assert MIN_ENTROPY < entropy < MAX_ENTROPY
    assert first_token > MIN_FIRST_TOKEN


@each_file
def test_random_data_does_not_look_real(row):
    random = np.random.default_rng(1)
    q, k = (random.standard_normal(row[name]) for name in ("q_shape", "k_shape"))
    entropy, first_token = figures(q, k, row["scale"], row["causal"])
    assert entropy > MAX_ENTROPY
    assert first_token < MIN_FIRST_TOKEN / 2


@pytest.mark.parametrize("dtype", sorted(qkv.ITEM_BYTES))
def test_pack_then_unpack(dtype):
    values = np.array([[0.0, -1.5, 2.0**-120 if dtype != "F16" else 2.0**-24, 240.0]])
    tensors, dtypes, metadata = qkv.unpack(qkv.pack({"q": values}, dtype, {"layer": "3"}))
    np.testing.assert_array_equal(tensors["q"], values.astype(np.float32))
    assert dtypes == {"q": dtype}
    assert metadata == {"layer": "3"}


@pytest.mark.parametrize("value, want", [
    (1 + 2**-8, 1.0),  # ties go to even
    (1 + 3 * 2**-8, 1 + 2**-6),
    (1 + 2**-8 + 2**-40, 1 + 2**-7),  # in fp32 this is the tie above
    (1.5 * 2**-133, 2**-132),  # subnormal
    (-3.0, -3.0),
])
def test_bf16_rounds_once_to_nearest_even(value, want):
    assert qkv.decode(qkv.encode(np.array([value]), "BF16"), "BF16")[0] == want


def test_unpack_refuses_what_is_not_whole():
    content = qkv.pack({"q": np.ones((2, 3)), "k": np.ones(4)}, "F16", {})
    with pytest.raises(ValueError, match="header: longer than the file's 7 bytes"):
        qkv.unpack(content[:7])
    with pytest.raises(ValueError, match="header: longer"):
        qkv.unpack(struct.pack("<Q", 2**63) + content[8:])
    with pytest.raises(ValueError, match="k: the file holds 7 of its 8 bytes"):
        qkv.unpack(content[:-1])
    with pytest.raises(ValueError, match="its tensors end at"):
        qkv.unpack(content + b"\0")
    with pytest.raises(ValueError, match="q: at 0..12, want 0..10"):
        qkv.unpack(content.replace(b"[2,3]", b"[1,5]"))
