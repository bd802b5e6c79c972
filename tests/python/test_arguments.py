"""Every argument of `attention`, by both clients, against fp64."""

import numpy as np
import pytest
from problems import check, large_problem, normal, qkv, small_problem
from reference import attention, rel_error

import attnd
from attnd.arrays import bfloat16

needs_ml_dtypes = pytest.mark.skipif(bfloat16() is None, reason="ml_dtypes is not installed")
DTYPES = ["float32", "float16", pytest.param("bfloat16", marks=needs_ml_dtypes)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_plain(client, dtype):
    q, k, v = qkv(dtype)
    o = client.attention(q, k, v)
    assert o.dtype == q.dtype and o.shape == q.shape
    assert o.flags.writeable and o.flags.aligned and o.flags.c_contiguous
    check(o, q, k, v)


@pytest.mark.parametrize(
    "argument, same",
    [
        ({"causal": True}, {"causal": "bottom-right"}),
        ({"causal": "bottom-right"}, {"causal": "bottom-right"}),
        ({"causal": "top-left"}, {"causal": "top-left"}),
        ({"window": (20, 0)}, {"window": (20, 0)}),
        ({"window": (None, 5)}, {"window": (None, 5)}),
        ({"window": (5, None), "causal": True}, {"window": (5, None), "causal": "bottom-right"}),
        ({"window": (None, None)}, {}),
        ({"softcap": 3.0}, {"softcap": 3.0}),
        ({"softcap": 0}, {}),
        ({"scale": 0.5}, {"scale": 0.5}),
        ({"alibi_slopes": [0.5, 0.25, 0.1, 0.2, 0.3, 0]}, {"slopes": [0.5, 0.25, 0.1, 0.2, 0.3, 0]}),
        ({"alibi_slopes": np.arange(6, dtype=np.float64) / 8}, {"slopes": np.arange(6) / 8}),
        ({"priority": 9, "deadline": 60.0}, {}),
        ({"deadline": float("inf")}, {}),
    ],
    ids=str,
)
def test_an_option(client, argument, same):
    q, k, v = qkv()
    o, lse = client.attention(q, k, v, lse=True, **argument)
    check(o, q, k, v, lse, **same)


def test_options_change_the_answer():
    """Else the test before would prove little."""
    q, k, v = qkv()
    plain = attention(q, k, v)[0]
    for same in ({"causal": "top-left"}, {"window": (20, 0)}, {"softcap": 3.0}, {"scale": 0.5}, {"slopes": [0.5] * 6}):
        assert rel_error(attention(q, k, v, **same)[0], plain) > 1e-2


def test_lse_only_where_it_is_asked_for(client):
    q, k, v = qkv()
    o = client.attention(q, k, v)
    assert isinstance(o, np.ndarray)
    with_lse, lse = client.attention(q, k, v, lse=True)
    assert (o == with_lse).all() and lse.shape == (2, 6, 31)
    result = client.compute(attnd.Problem(q, k, v))
    assert result.lse is None and result.kernel.startswith("attn_fwd_f32") and result.tries == 1
    assert result.timing.total_us >= result.timing.run_us >= 0


def test_bshd(client):
    q, k, v = qkv()
    o, lse = client.attention(*(np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)), layout="bshd", lse=True)
    check(o.swapaxes(1, 2), q, k, v, lse)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_one_kv_head_without_its_axis(client, layout):
    q, k, v = qkv(kv_heads=1)
    axes = (0, 1, 2, 3) if layout == "bhsd" else (0, 2, 1, 3)
    o = client.attention(q.transpose(axes), k[:, 0], v[:, 0], layout=layout)
    check(o.transpose(axes), q, k, v)


@pytest.mark.parametrize("ends", [list, np.asarray])
def test_packed(client, ends):
    q_lens, kv_lens = [5, 0, 17], [9, 3, 17]
    q, k, v = normal(1, sum(q_lens), 4, 32), normal(2, sum(kv_lens), 2, 32), normal(3, sum(kv_lens), 2, 32)
    q_ends, kv_ends = np.cumsum([0, *q_lens]), np.cumsum([0, *kv_lens])
    o, lse = client.attention(
        q, k, v, causal=True, layout="thd", lse=True, cu_seqlens_q=ends(q_ends), cu_seqlens_k=ends(kv_ends)
    )
    assert lse.shape == (4, 22)
    for i in (0, 2):
        rows, keys = slice(q_ends[i], q_ends[i + 1]), slice(kv_ends[i], kv_ends[i + 1])
        batch = [x.swapaxes(0, 1)[None] for x in (q[rows], k[keys], v[keys])]
        check(o[rows].swapaxes(0, 1)[None], *batch, lse[None, :, rows], causal="bottom-right")


def test_a_row_without_keys(client):
    q, k, v = qkv(q_len=9, kv_len=4)
    o, lse = client.attention(q, k, v, causal=True, lse=True)
    assert (o[:, :, :5] == 0).all() and np.isneginf(lse[:, :, :5]).all()
    check(o, q, k, v, lse, causal="bottom-right")


@pytest.mark.parametrize("transport", ["unary", "stream", "region"])
@pytest.mark.parametrize("shape", [(0, 6, 31, 48), (2, 6, 0, 48)])
def test_empty(server, connect, shape, transport):
    client = connect(server.address, transport=transport, local_socket=server.side_socket)
    _, k, v = qkv(batch=shape[0])
    o, lse = client.attention(np.zeros(shape, np.float32), k, v, lse=True)
    assert o.shape == shape and lse.shape == shape[:3]


def test_out(client):
    q, k, v = qkv()
    out = np.full_like(q, np.nan)
    assert client.attention(q, k, v, out=out) is out
    check(out, q, k, v)
    o, lse = client.attention(q, k, v, out=out, lse=True)
    assert o is out and lse.shape == (2, 6, 31)
    strided = np.full((*q.shape[:3], 100), np.nan, np.float32)
    client.attention(q, k, v, out=strided[..., 7:55])
    assert (strided[..., 7:55] == out).all() and np.isnan(strided[..., :7]).all() and np.isnan(strided[..., 55:]).all()


@pytest.mark.parametrize("transport", ["unary", "stream", "region"])
def test_strided_inputs_are_the_same_bits(server, connect, transport):
    client = connect(server.address, transport=transport, local_socket=server.side_socket)
    q, k, v = qkv()
    plain = client.attention(q, k, v)
    odd = [np.empty((*x.shape[:3], 61), np.float32)[..., 3:51] for x in (q, k, v)]
    for to, x in zip(odd, (q, k, v)):
        to[...] = x
    assert (client.attention(*odd) == plain).all()
    assert (client.attention(*(np.asfortranarray(x) for x in (q, k, v))) == plain).all()
    reverse = [x[::-1] for x in (q, k, v)]
    assert (client.attention(*reverse)[::-1] == plain).all()


@pytest.mark.parametrize("mebibytes", [0, 3, 70])
def test_every_transport_gives_the_same_bits(server, connect, mebibytes):
    problem = large_problem(mebibytes, lse=True) if mebibytes else small_problem(lse=True)
    results = {}
    for transport in ("unary", "stream", "region"):
        client = connect(server.address, transport=transport, local_socket=server.side_socket)
        results[transport] = client.compute(problem)
        assert results[transport].transport == transport
    check(results["unary"].o, problem.q, problem.k, problem.v, results["unary"].lse)
    for result in results.values():
        assert (result.o == results["unary"].o).all() and (result.lse == results["unary"].lse).all()


@pytest.mark.parametrize("mebibytes, local, far", [(0, "unary", "unary"), (1, "region", "unary"), (70, "region", "stream")])
def test_what_auto_takes(server, connect, mebibytes, local, far):
    problem = large_problem(mebibytes) if mebibytes else small_problem()
    assert connect(server.address, local_socket=server.side_socket).compute(problem).transport == local
    assert connect(server.address, local_socket="none").compute(problem).transport == far
