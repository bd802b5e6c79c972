"""DLPack tensors in the host's memory as numpy arrays, without a copy.

numpy.from_dlpack does the same, but for bfloat16, and its arrays cannot be written to.
"""

from __future__ import annotations

import ctypes
from typing import Any, Tuple

import numpy as np

# DLDeviceType: memory that the CPU reads: kDLCPU, kDLCUDAHost, kDLROCMHost, kDLCUDAManaged.
_HOST_DEVICES = {1, 3, 11, 13}
_FLOAT, _BFLOAT = 2, 4  # DLDataTypeCode
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),  # in elements; null: dense
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


class _Lent:
    """What numpy makes an array of, and keeps: the capsule gives the tensor back when it goes."""

    def __init__(self, capsule: object, interface: dict[str, Any]):
        self._capsule = capsule
        self.__array_interface__ = interface


def _open(x: Any) -> Tuple[object, _Tensor, bool]:
    """(capsule, tensor, read-only)."""
    try:
        capsule = x.__dlpack__(max_version=(1, 0))
    except TypeError:  # from before there were versions
        capsule = x.__dlpack__()
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        return capsule, versioned.tensor, bool(versioned.flags & _READ_ONLY)
    return capsule, _Tensor.from_address(_pointer(capsule, b"dltensor")), False


def is_on_host(x: Any) -> bool:
    return int(x.__dlpack_device__()[0]) in _HOST_DEVICES


def to_numpy(x: Any) -> Tuple[np.ndarray, str]:
    """(array over x's own memory, dtype's name); bfloat16 comes as uint16. `x` is on the host.

    TypeError for a dtype that numpy has no name for. What x.__dlpack__ raises passes.
    """
    capsule, tensor, read_only = _open(x)
    if tensor.lanes != 1 or tensor.code not in (_FLOAT, _BFLOAT):
        raise TypeError(f"DLPack type code {tensor.code} with {tensor.bits} bits")
    name = "bfloat16" if tensor.code == _BFLOAT else f"float{tensor.bits}"
    item = np.dtype("uint16" if name == "bfloat16" else name)
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if 0 in shape:
        return np.empty(shape, item), name
    strides = None
    if tensor.strides:
        strides = tuple(tensor.strides[i] * item.itemsize for i in range(tensor.ndim))
    address = (tensor.data or 0) + tensor.byte_offset
    interface = {"version": 3, "typestr": item.str, "shape": shape, "strides": strides, "data": (address, read_only)}
    return np.asarray(_Lent(capsule, interface)), name
