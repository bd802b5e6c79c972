"""Arrays that are not numpy's: nothing is copied that need not be."""

import array
import ctypes

import numpy as np
import pytest
from problems import check, normal, qkv

import attnd
from attnd import arrays, dlpack

FLOAT, BFLOAT, INT = 2, 4, 0


class Foreign:
    """Another library's tensor over numpy's memory: it has DLPack alone. `code` and `bits` may be made up."""

    def __init__(self, base, code=FLOAT, device=1, is_versioned=True):
        self.base, self.code, self.device, self.is_versioned = base, code, device, is_versioned

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, **options):
        if options and not self.is_versioned:
            raise TypeError("unexpected argument max_version")
        try:
            capsule = self.base.__dlpack__(**options)
        except TypeError:  # a numpy from before versions
            capsule = self.base.__dlpack__()
        is_old = dlpack._is_valid(capsule, b"dltensor")
        address = dlpack._pointer(capsule, b"dltensor" if is_old else b"dltensor_versioned")
        tensor = dlpack._Tensor.from_address(address) if is_old else dlpack._Versioned.from_address(address).tensor
        tensor.code = self.code
        return capsule


class OnDevice(Foreign):
    """A tensor on a GPU, as torch has it."""

    def __init__(self, base):
        super().__init__(base, device=2)

    def cpu(self):
        return Foreign(self.base)


@pytest.mark.parametrize("is_versioned", [True, False])
@pytest.mark.parametrize(
    "code, dtype, name", [(FLOAT, "f4", "float32"), (FLOAT, "f2", "float16"), (BFLOAT, "i2", "bfloat16")]
)
def test_dlpack_is_not_copied(code, dtype, name, is_versioned):
    base = np.arange(24, dtype=dtype).reshape(2, 3, 4).transpose(2, 0, 1)
    tensor = arrays.take("q", Foreign(base, code, is_versioned=is_versioned))
    assert tensor.dtype == name and tensor.array.shape == (4, 2, 3)
    assert np.shares_memory(tensor.array, base)
    assert (tensor.array.view(dtype) == base).all()
    if tensor.array.flags.writeable:
        tensor.array[...] = 0
        assert (base == 0).all()


def test_what_dlpack_lends_is_kept_while_it_is_used():
    base = np.arange(24, dtype=np.float32)
    address = base.ctypes.data
    array_ = arrays.take("q", Foreign(base)).array
    del base
    other = [np.full(24, 7, np.float32) for _ in range(100)]  # would take the memory if it were free
    assert array_.ctypes.data == address and (array_ == np.arange(24)).all() and len(other) == 100


def test_a_call_with_foreign_tensors(client):
    q, k, v = qkv()
    out = np.zeros_like(q)
    o = client.attention(Foreign(q), OnDevice(k), Foreign(v), out=out)
    assert o is out
    check(o, q, k, v)


def test_bfloat16_needs_no_dtype_of_numpys_where_out_is_given(client):
    """Its bits, as DLPack has them, come and go."""
    q, k, v = qkv()
    bits = [(x.view(np.uint32) >> 16).astype(np.int16) for x in (q, k, v)]
    out = Foreign(np.zeros_like(bits[0]), BFLOAT)
    try:
        client.attention(*(Foreign(x, BFLOAT) for x in bits), out=out)
    except attnd.InvalidArgument as error:
        # numpy 1 lends no memory that can be written to; others do.
        assert error.field == "out" and int(np.__version__.split(".")[0]) < 2
        return
    widened = [(x.view(np.uint16).astype(np.uint32) << 16).view(np.float32) for x in (*bits, out.base)]
    from reference import attention, rel_error

    assert rel_error(widened[3], attention(*widened[:3])[0]) <= 3.5e-3


def test_the_buffer_protocol():
    values = array.array("f", range(12))
    tensor = arrays.take("q", values)
    assert tensor.dtype == "float32" and (tensor.array == np.arange(12)).all()
    assert np.shares_memory(tensor.array, np.frombuffer(values, np.float32))
    assert arrays.take("q", memoryview((ctypes.c_float * 4)(1, 2, 3, 4))).array.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "x, says",
    [
        (np.zeros((1, 1, 2, 4)), "float64"),
        (np.zeros((1, 1, 2, 4), np.int32), "int32"),
        (np.zeros((1, 1, 2, 4), ">f4"), "byte order"),
        ([[1.0, 2.0]], "float64"),
        ("text", "str"),
        (None, "object"),
        (Foreign(np.zeros(4)), "float64"),
        (Foreign(np.zeros(4, np.int32), INT), "DLPack type code 0"),
    ],
    ids=str,
)
def test_dtypes_that_are_refused(x, says):
    with pytest.raises(attnd.InvalidArgument, match=says) as error:
        arrays.take("k", x)
    assert error.value.field == "k" and isinstance(error.value, ValueError)


def read_only(x):
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(
    "out, says",
    [
        (np.zeros((1, 2, 5, 15), np.float32), r"\[1, 2, 5, 15\]"),
        (np.zeros((1, 2, 5, 16), np.float16), "float16"),
        (read_only(np.zeros((1, 2, 5, 16), np.float32)), "read-only"),
        ([0.0] * 4, "written to"),
        (b"1234", "written to"),
        (OnDevice(np.zeros((1, 2, 5, 16), np.float32)), "on this host"),
    ],
    ids=str,
)
def test_out_that_is_refused(out, says):
    q = arrays.take("q", normal(1, 1, 2, 5, 16))
    with pytest.raises(attnd.InvalidArgument, match=says) as error:
        arrays.take_out(out, q)
    assert error.value.field == "out"


def test_no_new_array_of_a_dtype_that_numpy_does_not_know(monkeypatch):
    monkeypatch.setattr(arrays, "bfloat16", lambda: None)
    bits = Foreign(np.zeros((1, 1, 2, 4), np.int16), BFLOAT)
    with pytest.raises(attnd.InvalidArgument, match="bfloat16") as error:
        attnd.Client("127.0.0.1:1").attention(bits, bits, bits)
    assert "ml_dtypes" in error.value.hint


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_jax(client, dtype):
    jax_numpy = pytest.importorskip("jax.numpy", reason="jax is not installed: `make python PYTHON_EXTRAS=bfloat16,jax`")
    arrays_ = [jax_numpy.asarray(x, dtype=dtype) for x in qkv()]
    check(client.attention(*arrays_), *map(np.asarray, arrays_))
    address = arrays_[0].unsafe_buffer_pointer()
    assert arrays.take("q", arrays_[0]).array.ctypes.data == address  # not copied
    with pytest.raises(attnd.InvalidArgument) as error:
        client.attention(*arrays_, out=arrays_[0])  # jax's arrays do not change
    assert error.value.field == "out"
