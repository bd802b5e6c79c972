"""attnd.torch.sdpa beside torch.nn.functional.scaled_dot_product_attention."""

import pytest

import attnd

torch = pytest.importorskip("torch", reason="no torch: `make python PYTHON_EXTRAS=bfloat16,torch` tests with it")
from attnd import torch as attnd_torch  # noqa: E402

BOUND = {torch.float32: 4e-6, torch.float16: 9e-4, torch.bfloat16: 7e-3}  # of both beside fp64, added up


@pytest.fixture(scope="module")
def client(server):
    with attnd.Client(server.address, local_socket=server.side_socket) as client:
        yield client


def tensors(*shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def check(client, q, k, v, **options):
    want = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), **options)
    got = attnd_torch.sdpa(q, k, v, client=client, **options)
    assert got.dtype == q.dtype and got.shape == want.shape and got.device == q.device
    assert torch.linalg.norm(got.double() - want) <= BOUND[q.dtype] * torch.linalg.norm(want)


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.25}, {"is_causal": True, "scale": 0.5}], ids=str)
def test_options(client, dtype, options):
    check(client, *tensors((2, 4, 33, 64), (2, 4, 33, 64), (2, 4, 33, 64), dtype=dtype), **options)


@pytest.mark.parametrize("q_len, kv_len", [(5, 9), (9, 5), (1, 70), (256, 256)])
def test_causal_is_pytorchs(client, q_len, kv_len):
    check(client, *tensors((2, 4, q_len, 32), (2, 4, kv_len, 32), (2, 4, kv_len, 32)), is_causal=True)


@pytest.mark.parametrize("leading", [(), (4,), (2, 4), (3, 2, 4)], ids=str)
def test_ranks(client, leading):
    check(client, *tensors((*leading, 7, 16), (*leading, 9, 16), (*leading, 9, 16)), is_causal=True)


def test_leading_axes_are_broadcast(client):
    check(client, *tensors((2, 4, 7, 16), (1, 4, 9, 16), (2, 1, 9, 16)))


def test_grouped_queries(client):
    q, k, v = tensors((2, 6, 7, 16), (2, 2, 9, 16), (2, 2, 9, 16))
    check(client, q, k, v, enable_gqa=True)
    with pytest.raises(attnd.InvalidArgument) as error:
        attnd_torch.sdpa(q, k, v, client=client)
    assert error.value.hint == "enable_gqa=True"


def test_strides(client):
    q, k, v = tensors((2, 33, 4, 64), (2, 33, 4, 64), (2, 33, 4, 64))
    check(client, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)


@pytest.mark.parametrize(
    "options, field, hint",
    [
        ({"attn_mask": torch.ones(7, 9)}, "attn_mask", "is_causal"),
        ({"dropout_p": 0.1}, "dropout_p", "dropout_p=0.0"),
    ],
    ids=["attn_mask", "dropout_p"],
)
def test_what_there_is_not(client, options, field, hint):
    with pytest.raises(attnd.InvalidArgument) as error:
        attnd_torch.sdpa(*tensors((1, 2, 7, 16), (1, 2, 9, 16), (1, 2, 9, 16)), client=client, **options)
    assert error.value.field == field and hint in error.value.hint


def test_gradients(client):
    q, k, v = tensors((1, 2, 7, 16), (1, 2, 9, 16), (1, 2, 9, 16))
    q.requires_grad_()
    with pytest.raises(attnd.InvalidArgument, match="gradients"):
        attnd_torch.sdpa(q, k, v, client=client)
    with torch.no_grad():
        assert attnd_torch.sdpa(q, k, v, client=client).shape == q.shape
    with pytest.raises(attnd.InvalidArgument, match="DLPack") as error:
        client.attention(q, k, v)
    assert "detach" in error.value.hint


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
def test_dtypes(client, dtype):
    with pytest.raises(attnd.InvalidArgument, match="dtype"):
        attnd_torch.sdpa(*(x.to(dtype) for x in tensors((1, 2, 7, 16), (1, 2, 9, 16), (1, 2, 9, 16))), client=client)


def test_a_head_dim_of_vs_own(client):
    with pytest.raises(attnd.InvalidArgument) as error:
        attnd_torch.sdpa(*tensors((1, 2, 7, 16), (1, 2, 9, 16), (1, 2, 9, 8)), client=client)
    assert error.value.field == "value"


def test_the_client_of_this_process(server, monkeypatch):
    monkeypatch.setenv("ATTND_ADDRESS", server.address)
    monkeypatch.setattr(attnd_torch, "_clients", {})
    check(None, *tensors((1, 2, 7, 16), (1, 2, 9, 16), (1, 2, 9, 16)))


def test_tensors_go_to_the_client_as_they_are(client):
    """bfloat16 without ml_dtypes too, where out is given."""
    q, k, v = tensors((1, 2, 7, 16), (1, 2, 9, 16), (1, 2, 9, 16), dtype=torch.bfloat16)
    out = torch.empty_like(q)
    assert client.attention(q, k, v, out=out) is out
    want = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
    assert torch.linalg.norm(out.double() - want) <= 3.5e-3 * torch.linalg.norm(want)
