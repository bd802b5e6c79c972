"""Q/K/V files: reading and writing them, and the attention weights that they imply.

A file is safetensors with three tensors `q`, `k`, `v`, each [batch, heads, len, head_dim], all of one
dtype. Needs numpy and the standard library only, so that tests read the data on a bare machine.
"""

import hashlib
import json
import pathlib
import struct

import numpy as np

DATA_DIR = pathlib.Path(__file__).resolve().parent
MANIFEST = DATA_DIR / "manifest.json"
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
HEADER_ALIGN_BYTES = 8  # safetensors: tensor data starts at a multiple of 8


def encode(values, dtype):
    """Little-endian bytes of `values` (any float array), rounded once, to nearest even."""
    if dtype == "F16":
        return values.astype("<f2").tobytes()
    if dtype == "F32":
        return values.astype("<f4").tobytes()
    if dtype != "BF16":
        raise ValueError(f"dtype: got {dtype}, want one of {sorted(ITEM_BYTES)}")
    # To 8 significant bits, or the subnormals' 2^-133, in fp64: going through fp32 would round twice.
    _, exponent = np.frexp(values.astype(np.float64))
    unit = np.ldexp(1.0, np.maximum(exponent, -125) - 8)
    rounded = (np.rint(values / unit) * unit).astype("<f4")
    return (rounded.view("<u4") >> 16).astype("<u2").tobytes()


def decode(data, dtype):
    """A flat fp32 array of the values in `data`; exact for every dtype."""
    if dtype == "F32":
        return np.frombuffer(data, "<f4")
    if dtype == "F16":
        return np.frombuffer(data, "<f2").astype(np.float32)
    if dtype != "BF16":
        raise ValueError(f"dtype: got {dtype}, want one of {sorted(ITEM_BYTES)}")
    return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")


def pack(tensors, dtype, metadata):
    """The bytes of a file with `tensors` {name: array} in the order given; equal input, equal bytes."""
    header, payload = {"__metadata__": metadata}, b""
    for name, values in tensors.items():
        data = encode(values, dtype)
        header[name] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [len(payload), len(payload) + len(data)],
        }
        payload += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_ALIGN_BYTES)
    return struct.pack("<Q", len(text)) + text + payload


def unpack(content):
    """(tensors {name: fp32 array}, dtypes {name: str}, metadata) of a whole file's bytes.

    ValueError if the tensors do not lie back to back from the header to the end, or a shape and its
    byte count disagree.
    """
    if len(content) < 8 or struct.unpack_from("<Q", content)[0] > len(content) - 8:
        raise ValueError(f"header: longer than the file's {len(content)} bytes")
    data_start = 8 + struct.unpack_from("<Q", content)[0]
    header = json.loads(content[8:data_start])
    metadata = header.pop("__metadata__", {})
    tensors, dtypes, end = {}, {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, tensor_end = entry["data_offsets"]
        want_bytes = int(np.prod(entry["shape"], dtype=np.int64)) * ITEM_BYTES[entry["dtype"]]
        if begin != end or tensor_end - begin != want_bytes:
            raise ValueError(f"{name}: at {begin}..{tensor_end}, want {end}..{end + want_bytes}")
        end = tensor_end
        data = content[data_start + begin : data_start + end]
        if len(data) != want_bytes:
            raise ValueError(f"{name}: the file holds {len(data)} of its {want_bytes} bytes")
        tensors[name] = decode(data, entry["dtype"]).reshape(entry["shape"])
        dtypes[name] = entry["dtype"]
    if data_start + end != len(content):
        raise ValueError(f"file: {len(content)} bytes, its tensors end at {data_start + end}")
    return tensors, dtypes, metadata


def load_manifest():
    return json.loads(MANIFEST.read_text()) if MANIFEST.exists() else []


def save_or_check(name, content, check):
    """Writes `content` as the data file `name` and its manifest row, or, with `check`, asserts that
    both are already exactly so."""
    tensors, dtypes, metadata = unpack(content)
    row = {
        "file": name,
        "model": metadata["model"],
        "layer": int(metadata["layer"]),
        "dtype": dtypes["q"],
        "layout": metadata["layout"],
        "causal": metadata["causal"],
        "scale": float(metadata["scale"]),
        "q_shape": list(tensors["q"].shape),
        "k_shape": list(tensors["k"].shape),
        "text": metadata["text"],
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    rows = {old["file"]: old for old in load_manifest()}
    if check:
        assert (DATA_DIR / name).read_bytes() == content, f"{name}: the bytes differ"
        assert rows.get(name) == row, f"{name}: its manifest row differs"
        return
    rows[name] = row
    (DATA_DIR / name).write_bytes(content)
    lines = ",\n".join("  " + json.dumps(rows[file]) for file in sorted(rows))
    MANIFEST.write_text(f"[\n{lines}\n]\n")


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def attention_weights(q, k, scale, causal):
    """fp64 softmax(scale * q.k) [batch, q_heads, q_len, kv_len]; causal: "bottom_right" or "none"."""
    k = np.repeat(k.astype(np.float64), q.shape[1] // k.shape[1], axis=1)
    scores = scale * (q.astype(np.float64) @ k.swapaxes(-1, -2))
    if causal == "bottom_right":
        q_len, kv_len = scores.shape[-2:]
        scores = np.where(np.tri(q_len, kv_len, kv_len - q_len, dtype=bool), scores, -np.inf)
    elif causal != "none":
        raise ValueError(f'causal: got {causal}, want "bottom_right" or "none"')
    return softmax(scores)


def attend(q, k, v, scale, causal):
    """fp64 attention output, shaped like q."""
    v = np.repeat(v.astype(np.float64), q.shape[1] // v.shape[1], axis=1)
    return attention_weights(q, k, scale, causal) @ v
