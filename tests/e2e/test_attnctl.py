"""attnctl against a real attnd: real data, layouts, masks, errors."""

import json

import numpy as np
import pytest

from attnd_process import DATA_DIR, tool, tool_json
from reference import BOUND, attention, read_safetensors, rel_error

MANIFEST = json.loads((DATA_DIR / "manifest.json").read_text())


def run(server, folder, arrays, *flags, ok=True):
    """attnctl run on numpy arrays; its JSON, O and LSE."""
    words = []
    for name, array in arrays.items():
        path = folder / f"{name}.npy"
        np.save(path, array)
        words += [f"--{name}", path]
    words += ["--out", folder / "o.npy", "--lse", folder / "lse.npy", "--server", server.address, *flags]
    if not ok:
        return tool("attnctl", "run", *words)
    answer = tool_json("attnctl", "run", "--verify", *words)
    return answer, np.load(folder / "o.npy"), np.load(folder / "lse.npy")


def normal(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def qkv(q_shape, kv_shape, dtype=np.float32):
    return {"q": normal(1, *q_shape, dtype=dtype), "k": normal(2, *kv_shape, dtype=dtype), "v": normal(3, *kv_shape, dtype=dtype)}


@pytest.mark.parametrize("entry", MANIFEST, ids=lambda entry: entry["file"])
def test_real_data(server, tmp_path, entry):
    path = DATA_DIR / entry["file"]
    causal = entry["causal"].replace("_", "-")
    answer = tool_json(
        "attnctl", "run", "--server", server.address, "--q", f"{path}:q", "--k", f"{path}:k", "--v", f"{path}:v",
        "--causal", causal, "--scale", entry["scale"], "--verify", "--out", tmp_path / "o.npy", "--lse", tmp_path / "lse.npy",
    )  # fmt: skip
    dtype = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[entry["dtype"]]
    assert answer["dtype"] == dtype
    assert answer["shape"] == entry["q_shape"]
    assert answer["kernel"].startswith("attn_fwd_" + entry["dtype"].lower())
    assert 0 < answer["rel_error"] <= answer["bound"] == BOUND[dtype]
    assert answer["total_us"] >= answer["run_us"] > 0
    # And once more with numpy, from the files alone.
    tensors = read_safetensors(path)
    o, lse = attention(tensors["q"], tensors["k"], tensors["v"], causal=causal, scale=entry["scale"])
    assert rel_error(np.load(tmp_path / "o.npy"), o) <= BOUND[dtype]
    assert rel_error(np.load(tmp_path / "lse.npy"), lse) <= 2e-6


def test_transports_give_the_same_bits(server, tmp_path):
    arrays = qkv((2, 8, 2000, 64), (2, 2, 3000, 64))  # O: 8 MB, several chunks
    answers = {how: run(server, tmp_path, arrays, "--transport", how) for how in ("unary", "stream", "auto")}
    for how, (answer, o, lse) in answers.items():
        assert answer["transport"] == ("stream" if how == "stream" else "unary")
        assert answer["rel_error"] <= answer["bound"]
        assert o.tobytes() == answers["unary"][1].tobytes()
        assert lse.tobytes() == answers["unary"][2].tobytes()


@pytest.mark.parametrize(
    "flags, kwargs",
    [
        ([], {}),
        (["--causal", "top-left"], {"causal": "top-left"}),
        (["--causal", "bottom-right"], {"causal": "bottom-right"}),
        (["--window", "7,3"], {"window": (7, 3)}),
        (["--window", "5,"], {"window": (5, None)}),
        (["--window", "-,0"], {"window": (None, 0)}),
        (["--causal=top-left", "--window=9,2"], {"causal": "top-left", "window": (9, 2)}),
        (["--softcap", "2.5"], {"softcap": 2.5}),
        (["--scale", "0.3"], {"scale": 0.3}),
        (["--causal=bottom-right", "--softcap=5", "--scale=0.2"], {"causal": "bottom-right", "softcap": 5, "scale": 0.2}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("lens", [(33, 70), (70, 33)], ids=["q<kv", "q>kv"])
def test_masks(server, tmp_path, flags, kwargs, lens):
    arrays = qkv((2, 4, lens[0], 40), (2, 2, lens[1], 40))
    _, o, lse = run(server, tmp_path, arrays, *flags)
    want_o, want_lse = attention(**arrays, **kwargs)
    assert rel_error(o, want_o) <= BOUND["float32"]
    assert rel_error(lse, want_lse) <= 2e-6
    assert not o[np.isneginf(want_lse)].any()


def test_alibi(server, tmp_path):
    slopes = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
    np.save(tmp_path / "slopes.npy", slopes)
    arrays = qkv((1, 4, 20, 64), (1, 1, 50, 64), np.float16)
    _, o, _ = run(server, tmp_path, arrays, "--alibi", tmp_path / "slopes.npy", "--causal", "bottom-right")
    assert rel_error(o, attention(**arrays, slopes=slopes, causal="bottom-right")[0]) <= BOUND["float16"]


def test_layout_bshd(server, tmp_path):
    arrays = qkv((2, 19, 6, 32), (2, 45, 3, 32))
    _, o, lse = run(server, tmp_path, arrays, "--layout", "bshd")
    want_o, want_lse = attention(**{name: array.swapaxes(1, 2) for name, array in arrays.items()})
    assert rel_error(o.swapaxes(1, 2), want_o) <= BOUND["float32"]
    assert rel_error(lse, want_lse) <= 2e-6


@pytest.mark.parametrize("from_file", [False, True], ids=["list", "file"])
def test_layout_thd(server, tmp_path, from_file):
    q_ends, kv_ends = [0, 5, 5, 17], [0, 9, 20, 23]
    arrays = qkv((17, 4, 24), (23, 2, 24))
    flags = ["--layout=thd", "--causal=bottom-right"]
    for name, ends in (("cu_seqlens_q", q_ends), ("cu_seqlens_kv", kv_ends)):
        np.save(tmp_path / f"{name}.npy", np.array(ends, np.int32))
        flags += [f"--{name}", tmp_path / f"{name}.npy" if from_file else ",".join(map(str, ends))]
    _, o, lse = run(server, tmp_path, arrays, *flags)
    assert lse.shape == (4, 17)
    for i in range(3):
        rows, keys = slice(q_ends[i], q_ends[i + 1]), slice(kv_ends[i], kv_ends[i + 1])
        parts = [arrays["q"][rows], arrays["k"][keys], arrays["v"][keys]]
        want_o, want_lse = attention(*(part.swapaxes(0, 1)[None] for part in parts), causal="bottom-right")
        assert rel_error(o[rows].swapaxes(0, 1)[None], want_o) <= BOUND["float32"]
        assert rel_error(lse[None, :, rows], want_lse) <= 2e-6


def test_kv_without_a_head_axis(server, tmp_path):
    arrays = qkv((1, 3, 8, 16), (1, 12, 16))
    _, o, _ = run(server, tmp_path, arrays)
    want_o, _ = attention(arrays["q"], arrays["k"][:, None], arrays["v"][:, None])
    assert rel_error(o, want_o) <= BOUND["float32"]


# Cases S6, K16, K17.
def test_extents_of_zero(server, tmp_path):
    answer, o, lse = run(server, tmp_path, qkv((1, 2, 0, 8), (1, 2, 5, 8)))
    assert o.shape == (1, 2, 0, 8) and lse.shape == (1, 2, 0) and answer["rel_error"] == 0
    _, o, lse = run(server, tmp_path, qkv((1, 2, 5, 8), (1, 2, 0, 8)))
    assert not o.any() and np.isneginf(lse).all()


def test_table_for_a_person(server, tmp_path):
    for name in "qkv":
        np.save(tmp_path / f"{name}.npy", normal(1, 1, 1, 4, 8))
    done = tool("attnctl", "run", "--server", server.address, "--verify", *(w for n in "qkv" for w in (f"--{n}", tmp_path / f"{n}.npy")))
    assert done.returncode == 0, done.stderr
    for word in ("kernel ", "attn_fwd_f32_", "queue ", "against fp64", ": ok"):
        assert word in done.stdout


@pytest.mark.parametrize(
    "changes, flags, parts",
    [
        ({"v": (1, 2, 9, 8)}, [], ["INVALID_ARGUMENT", "v"]),  # case K40
        ({"q": (1, 3, 4, 8)}, [], ["INVALID_ARGUMENT", "3", "2"]),  # case K42
        ({}, ["--window", "-1,0"], ["INVALID_ARGUMENT", "window"]),
        ({}, ["--scale", "0"], ["INVALID_ARGUMENT", "scale"]),
        ({}, ["--layout", "thd"], ["INVALID_ARGUMENT"]),
        ({}, ["--priority", "10"], ["INVALID_ARGUMENT", "priority", "10", "9"]),
        ({"q": (1, 2, 4, 257), "k": (1, 2, 4, 257), "v": (1, 2, 4, 257)}, [], ["head_dim", "257", "256"]),
    ],
    ids=str,
)
def test_what_the_server_refuses(server, tmp_path, changes, flags, parts):
    shapes = {"q": (1, 2, 4, 8), "k": (1, 2, 4, 8), "v": (1, 2, 4, 8), **changes}
    arrays = {name: normal(1, *shape) for name, shape in shapes.items()}
    done = run(server, tmp_path, arrays, *flags, ok=False)
    assert done.returncode == 1
    for part in parts:
        assert part in done.stderr
    run(server, tmp_path, qkv((1, 2, 4, 8), (1, 2, 4, 8)))  # the next good call works


@pytest.mark.parametrize(
    "words, code, part",
    [
        (["run", "--q", "nowhere.npy", "--k", "x.npy", "--v", "x.npy"], 1, "--q: nowhere.npy: no such file"),
        (["run", "--q", "q.npy"], 2, "--k is missing"),
        (["run", "--frobnicate"], 2, "there is no flag --frobnicate"),
        (["run", "--causal", "maybe", "--q=q", "--k=k", "--v=v"], 2, "must be bottom-right, top-left or none"),
        (["run", "--window", "1,2,3", "--q=q", "--k=k", "--v=v"], 2, "LEFT,RIGHT"),
        (["walk"], 2, 'there is no command "walk"'),
        (["info", "surplus"], 2, '"surplus" is not a flag'),
        ([], 2, "usage: attnctl"),
        (["info", "--server", "nonsense"], 2, "neither host:port nor unix:/path"),
        (["info", "--server", "127.0.0.1:1"], 1, "No server answers at 127.0.0.1:1. Start one (attnd --listen=127.0.0.1:1)"),
        (["health", "--server", "127.0.0.1:1"], 1, "No server answers at 127.0.0.1:1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_mistakes_of_the_command_line(words, code, part):
    done = tool("attnctl", *words)
    assert done.returncode == code, done.stderr
    assert part in done.stderr
    assert not done.stdout


def test_wrong_dtype(server, tmp_path):
    done = run(server, tmp_path, {"q": np.zeros((1, 1, 1, 8)), "k": np.zeros((1, 1, 1, 8)), "v": np.zeros((1, 1, 1, 8))}, ok=False)
    assert done.returncode == 1
    assert 'has dtype "<f8", must be <f4 or <f2; convert float64' in done.stderr


def test_info_and_health(server):
    info = tool_json("attnctl", "info", "--server", server.address)
    assert info["backend"] in info["devices"][0]["backends"]
    assert info["max_head_dim"] == 256 and info["instance_id"] and info["version"]
    assert info["takes_cuda_memory"] is False
    assert "backend" in tool("attnctl", "info", "--server", server.address).stdout
    assert tool_json("attnctl", "health", "--server", server.address) == {"serving": True, "message": ""}
    assert "SERVING" in tool("attnctl", "health", "--server", server.address).stdout
