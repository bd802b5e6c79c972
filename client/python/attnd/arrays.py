"""Tensors of callers as numpy arrays over the same memory."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np

from attnd import dlpack
from attnd.errors import InvalidArgument
from attnd.v1 import attnd_pb2 as pb

# numpy's dtypes, as the arrays inside of this package have them: bfloat16 as its bits.
_STORAGE = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2"), "bfloat16": np.dtype("<u2")}
_NAMES = {_STORAGE[name]: name for name in ("float32", "float16")}
WIRE_DTYPES = {
    "float32": pb.DATA_TYPE_FLOAT32,
    "float16": pb.DATA_TYPE_FLOAT16,
    "bfloat16": pb.DATA_TYPE_BFLOAT16,
}


class Tensor(NamedTuple):
    """An array of any strides, and what its elements are."""

    array: np.ndarray
    dtype: str

    @property
    def wire_dtype(self) -> pb.DataType:
        return WIRE_DTYPES[self.dtype]


def _to_host(x: Any) -> Any:
    """A copy of what lies on another device."""
    for way in ("cpu", "get"):  # torch, cupy
        if hasattr(x, way):
            return getattr(x, way)()
    return np.asarray(x)  # jax


def _from_dlpack(name: str, x: Any) -> Tensor:
    try:
        return Tensor(*dlpack.to_numpy(x))
    except TypeError as error:
        raise _wrong_dtype(name, str(error)) from None
    except Exception as error:
        hint = "give x.detach(): attnd computes no gradients" if getattr(x, "requires_grad", False) else None
        raise InvalidArgument(f"{name} cannot be read by DLPack: {error}", field=name, hint=hint) from error


def _wrong_dtype(name: str, dtype: str) -> InvalidArgument:
    return InvalidArgument(
        f"{name} has dtype {dtype}, must be float32, float16 or bfloat16",
        field=name,
        hint=f"{name}.astype(numpy.float32)",
    )


def take(name: str, x: Any) -> Tensor:
    """What the caller gave as argument `name`: a numpy array, or anything with DLPack or the buffer protocol.

    Over the caller's own memory, unless that is on another device. InvalidArgument for other dtypes.
    """
    if not isinstance(x, np.ndarray):
        if hasattr(x, "__dlpack__"):
            if not dlpack.is_on_host(x):
                return take(name, _to_host(x))
            tensor = _from_dlpack(name, x)
            if tensor.dtype not in _STORAGE:
                raise _wrong_dtype(name, tensor.dtype)
            return tensor
        x = np.asarray(x)
    dtype = _NAMES.get(x.dtype)
    if dtype is not None:
        return Tensor(x, dtype)
    # ml_dtypes' is a dtype of its own, which only its name tells.
    if x.dtype.name == "bfloat16":
        return Tensor(x.view(np.uint16), "bfloat16")
    raise _wrong_dtype(name, x.dtype.name if x.dtype.isnative else f"{x.dtype.name} of the other byte order")


def _is_memory(out: Any) -> bool:
    """Whether what is written there is there for the caller: not in a list, of which numpy would make an array."""
    if type(out).__module__.startswith("jax"):
        return False  # which lends its arrays as if they could change
    try:
        return hasattr(out, "__dlpack__") or not memoryview(out).readonly
    except TypeError:
        return False


def take_out(out: Any, q: Tensor) -> np.ndarray:
    """Where O is to go: the memory of `out`, which must be like q."""
    if not _is_memory(out) or (hasattr(out, "__dlpack_device__") and not dlpack.is_on_host(out)):
        raise InvalidArgument("out has no memory on this host that can be written to", field="out")
    tensor = take("out", out)
    if tensor.dtype != q.dtype or tensor.array.shape != q.array.shape:
        raise InvalidArgument(
            f"out is {tensor.dtype} {list(tensor.array.shape)}, O will be {q.dtype} {list(q.array.shape)}", field="out"
        )
    if not tensor.array.flags.writeable:
        raise InvalidArgument("out is read-only", field="out")
    return tensor.array


def bfloat16() -> Any:
    """ml_dtypes' dtype; None where it is not installed."""
    try:
        return importlib.import_module("ml_dtypes").bfloat16
    except ImportError:
        return None


def check_output(q: Tensor) -> None:
    """Whether O can be given as a new array."""
    if q.dtype == "bfloat16" and bfloat16() is None:
        raise InvalidArgument(
            "O would be bfloat16, which numpy alone does not know",
            field="out",
            hint="pip install ml_dtypes, or give out=, or take float32",
        )


def presented(array: np.ndarray, dtype: str) -> np.ndarray:
    """The array as callers see it."""
    return array.view(bfloat16()) if dtype == "bfloat16" else array
