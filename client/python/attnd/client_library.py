"""The C++ client's library, libattnd_client_c.so (client/attnd_client.h), where it is at hand."""

from __future__ import annotations

import ctypes
import logging
import os
import pathlib
import threading
from typing import Any, List, Optional, Tuple

from attnd.errors import FailedPrecondition

NAME = "libattnd_client_c.so"
RUNNING = -1
NO_TIMEOUT = 2**63 - 1
GIVEN_WINDOW_LEFT, GIVEN_WINDOW_RIGHT, GIVEN_SCALE, GIVEN_SOFTCAP = 1, 2, 4, 8
ERROR_BYTES = 1536


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size_bytes", ctypes.c_uint64),
        ("max_region_bytes", ctypes.c_int64),
        ("local_socket", ctypes.c_char_p),
        ("max_tries", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("rank", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    ]


class Request(ctypes.Structure):
    _fields_ = [
        ("struct_size_bytes", ctypes.c_uint64),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),
        ("alibi_slopes", ctypes.c_void_p),
        ("alibi_slopes_count", ctypes.c_int64),
        ("cu_seqlens_q", ctypes.c_void_p),
        ("cu_seqlens_q_count", ctypes.c_int64),
        ("cu_seqlens_kv", ctypes.c_void_p),
        ("cu_seqlens_kv_count", ctypes.c_int64),
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("given", ctypes.c_uint32),
        ("layout", ctypes.c_int32),
        ("causal", ctypes.c_int32),
        ("transport", ctypes.c_int32),
        ("priority", ctypes.c_int32),
        ("waits_at_once", ctypes.c_int32),
        ("timeout_us", ctypes.c_int64),
        ("request_id", ctypes.c_char_p),
    ]


class Result(ctypes.Structure):
    """With the names of pb.ComputeResponseHeader, where it has them."""

    _fields_ = [
        ("struct_size_bytes", ctypes.c_uint64),
        *((name, ctypes.c_int32) for name in ("code", "tries", "transport", "from_server", "untouched", "has_pushback")),
        *((name, ctypes.c_int64) for name in ("pushback_ms", "queue_us", "upload_us", "run_us", "download_us", "total_us")),
        *((name, ctypes.c_int64) for name in ("batch_id", "batch_size", "sent_bytes", "received_bytes")),
        ("_backend", ctypes.c_char * 64),
        ("_kernel", ctypes.c_char * 192),
        ("_device", ctypes.c_char * 192),
        ("_message", ctypes.c_char * ERROR_BYTES),
    ]

    @property
    def timing(self) -> Result:
        return self

    @property
    def backend(self) -> str:
        return text(self._backend)

    @property
    def kernel(self) -> str:
        return text(self._kernel)

    @property
    def device(self) -> str:
        return text(self._device)

    @property
    def message(self) -> str:
        return text(self._message)


class ServerInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size_bytes", ctypes.c_uint64),
        *((name, ctypes.c_int64) for name in ("max_unary_bytes", "max_stream_bytes", "max_head_dim")),
        ("takes_cuda_memory", ctypes.c_int32),
        ("device_count", ctypes.c_int32),
        ("instance_id", ctypes.c_char * 128),
        ("version", ctypes.c_char * 64),
        ("backend", ctypes.c_char * 64),
        ("backend_reason", ctypes.c_char * 512),
        ("devices", ctypes.c_char * 4096),
    ]


_FUNCTIONS: dict[str, Tuple[Any, Tuple[Any, ...]]] = {
    "version": (ctypes.c_char_p, ()),
    "options_init": (None, (ctypes.c_void_p, ctypes.c_uint64)),
    "request_init": (None, (ctypes.c_void_p, ctypes.c_uint64)),
    "connect": (
        ctypes.c_int,
        (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
    ),
    "close": (None, (ctypes.c_void_p,)),
    "start": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
    ),
    "wait": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)),
    "cancel": (None, (ctypes.c_void_p,)),
    "release": (None, (ctypes.c_void_p,)),
    "get_server_info": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t),
    ),
}


class Library:
    """Its functions, without their prefix. Each lets other Python threads run meanwhile."""

    def __init__(self, path: str):
        """OSError where it cannot be loaded, is of another version, or another copy is there already."""
        loaded = _open(path)
        for name, (result, arguments) in _FUNCTIONS.items():
            try:
                function = loaded[f"attnd_client_{name}"]
            except AttributeError as error:
                raise OSError(f"{path}: {error}") from None
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        version = text(self.version())
        if version.split(".")[:2] != _package_version().split(".")[:2]:
            raise OSError(f"{path} has version {version}, this package {_package_version()}")

    def __getattr__(self, name: str) -> Any:  # for what __init__ sets
        raise AttributeError(name)


_lock = threading.Lock()
_opened: List[str] = []  # the one path


def _open(path: str) -> ctypes.CDLL:
    """Protobuf ends a process that a second copy, and with it a second attnd.proto, is loaded into."""
    with _lock:
        if _opened and os.path.realpath(_opened[0]) != os.path.realpath(path):
            raise OSError(f"{path}: this process has {_opened[0]}")
        opened = ctypes.CDLL(path)
        _opened[:] = [path]
        return opened


def text(data: bytes) -> str:
    return data.decode(errors="replace")


def _package_version() -> str:
    import attnd

    return attnd.__version__


def find() -> Optional[Library]:
    """As $ATTND_CLIENT_LIBRARY says; where it is not set, what is loaded, the package's own, or the system's. None: none.

    FailedPrecondition for a library that was asked for and cannot be used.
    """
    asked_for = os.environ.get("ATTND_CLIENT_LIBRARY")
    if asked_for:
        try:
            return Library(asked_for)
        except OSError as error:
            raise FailedPrecondition(
                f"ATTND_CLIENT_LIBRARY: {error}", hint="set to nothing, it means the client in Python alone"
            ) from None
    if asked_for is not None:
        return None
    own = pathlib.Path(__file__).with_name(NAME)
    for path in _opened or [str(own)] * own.exists() + [NAME]:
        try:
            return Library(path)
        except OSError as error:
            logging.getLogger("attnd").debug("%s", error)
    return None
