"""The C++ client as what carries out calls: retries, regions and streams are its own, and grpcio is not used."""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
from typing import Any, List, Optional, Set

import numpy as np

from attnd import client_library as library
from attnd import wire
from attnd.client_library import Library
from attnd.connection import Call
from attnd.errors import Error, FailedPrecondition, InvalidArgument, NotFound, field_of, hint_for, of_code
from attnd.flow import TRANSPORTS, Core, end_of
from attnd.problem import Problem, Result, ServerInfo
from attnd.region import CODES

# A wait in C sees no signal; between two waits Python does.
_SLICE_US = 100_000


class Native:
    """A client of the library's. Thread-safe."""

    def __init__(self, lib: Library, core: Core, max_tries: int, local_socket: Optional[str], max_region_bytes: int):
        self._lib = lib
        self._address = core.address
        self._transport = TRANSPORTS.index(core.transport)
        self._has_no_way = core.transport == "region" and local_socket == "none"
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._under_way: Set[_Started] = set()
        self._is_closed = False
        options = library.Options()
        lib.options_init(ctypes.byref(options), ctypes.sizeof(options))
        options.max_tries = min(max(max_tries, 1), 2**31 - 1)
        options.max_region_bytes = max(max_region_bytes, 0)
        options.local_socket = None if local_socket is None else os.fsencode(local_socket)
        self._client = ctypes.c_void_p()
        said = ctypes.create_string_buffer(library.ERROR_BYTES)
        code = lib.connect(core.address.encode(), ctypes.byref(options), ctypes.byref(self._client), said, len(said))
        if code != 0:
            raise InvalidArgument(library.text(said.value), field="address")

    def close(self) -> None:
        """Cancels what is under way."""
        if self._pid != os.getpid():
            return  # its threads are the parent's
        with self._lock:
            self._is_closed = True
            for call in self._under_way:
                call.cancel_locked()
        self._end_when_idle()

    def compute(self, problem: Problem, call: Optional[Call]) -> Result:
        request = wire.read(problem)
        timeout_us = _timeout_us(problem.deadline)
        if self._has_no_way:
            raise NotFound("no server's side socket is at none")
        outputs = wire.Outputs(request)
        head = request.head.native or _native_head(self._lib, request.head)
        asked = library.Request.from_buffer_copy(head.template)
        inputs = [np.ascontiguousarray(tensor.array) for tensor in request.inputs]
        asked.q.data, asked.k.data, asked.v.data = map(_address_of, inputs)
        asked.o = _address_of(outputs.o)
        if outputs.lse is not None:
            asked.lse = _address_of(outputs.lse)
        asked.transport, asked.timeout_us = self._transport, timeout_us
        account = self._run(_Started(self, (head, inputs, outputs)), asked, call)
        if account.code != 0:
            raise self._error_of(account)
        return outputs.result(account.tries, account)

    def server_info(self, deadline: Optional[float]) -> ServerInfo:
        info = library.ServerInfo()
        info.struct_size_bytes = ctypes.sizeof(info)
        said = ctypes.create_string_buffer(library.ERROR_BYTES)
        asked = _Started(self)
        self._enter(asked)
        try:
            code = self._lib.get_server_info(
                self._client, _timeout_us(deadline), ctypes.byref(info), said, len(said)
            )
        finally:
            self._leave(asked)
        if code != 0:
            raise self._failed(code, library.text(said.value))
        return ServerInfo(
            instance_id=library.text(info.instance_id), version=library.text(info.version),
            backend=library.text(info.backend), backend_reason=library.text(info.backend_reason),
            devices=tuple(library.text(info.devices).splitlines()), max_unary_bytes=info.max_unary_bytes,
            max_stream_bytes=info.max_stream_bytes, max_head_dim=info.max_head_dim,
            takes_cuda_memory=bool(info.takes_cuda_memory),
        )  # fmt: skip

    def _run(self, started: _Started, asked: library.Request, call: Optional[Call]) -> library.Result:
        """To the call's end: then nobody uses the arrays any more, whatever is raised."""
        account = library.Result()
        account.struct_size_bytes = ctypes.sizeof(account)
        self._enter(started)
        try:
            started.start(asked, account)
            if call is not None:
                call._runs(started)
            while account.code == library.RUNNING:
                started.wait(account)
        finally:
            self._leave(started)
        return account

    def _enter(self, call: _Started) -> None:
        with self._lock:
            if self._is_closed:
                raise FailedPrecondition("the client is closed")
            self._under_way.add(call)

    def _leave(self, call: _Started) -> None:
        call.release()
        with self._lock:
            self._under_way.remove(call)
        if self._is_closed:
            self._end_when_idle()

    def _end_when_idle(self) -> None:
        with self._lock:
            if self._under_way:
                return  # the last of them does it
            client, self._client = self._client, ctypes.c_void_p()
        self._lib.close(client)

    def _error_of(self, account: library.Result) -> Error:
        error = self._failed(account.code, account.message)
        error.tries = account.tries
        error.from_attnd = bool(account.from_server)
        error.untouched = bool(account.untouched)
        error.pushback_ms = account.pushback_ms if account.has_pushback else None
        error.hint = hint_for(error, self._address)
        return error

    def _failed(self, code: int, message: str) -> Error:
        name = CODES[code]
        error = of_code(name, message, field=field_of(message) if name == "INVALID_ARGUMENT" else None)
        error.hint = hint_for(error, self._address)
        return error


class _Started:
    """A call of the library's. `keep`: the memory that it uses; whatever interrupts Python, both go together."""

    __slots__ = ("_native", "_keep", "_handle", "_is_started", "_is_cancelled")

    def __init__(self, native: Native, keep: Any = None):
        self._native = native
        self._keep = keep
        self._handle = ctypes.c_void_p()
        self._is_started = False
        self._is_cancelled = False

    def start(self, asked: library.Request, account: library.Result) -> None:
        """account.code is RUNNING then; or it says why it does not."""
        native, message = self._native, ctypes.addressof(account) + library.Result._message.offset
        where = ctypes.byref(self._handle)
        code = native._lib.start(native._client, ctypes.byref(asked), where, message, library.ERROR_BYTES)
        account.code = code or library.RUNNING
        with native._lock:
            self._is_started = code == 0
            if self._is_cancelled:
                self.cancel_locked()

    def wait(self, account: library.Result) -> None:
        self._native._lib.wait(self._handle, _SLICE_US, ctypes.byref(account))

    def release(self) -> None:
        with self._native._lock:
            self._is_started = False
        self._native._lib.release(self._handle)

    def cancel(self) -> None:
        with self._native._lock:
            self.cancel_locked()

    def cancel_locked(self) -> None:
        self._is_cancelled = True
        if self._is_started:
            self._native._lib.cancel(self._handle)


class _NativeHead:
    """A request without its memory, and the arrays that it names."""

    __slots__ = ("template", "_keep")

    def __init__(self, template: library.Request, keep: List[Any]):
        self.template = template
        self._keep = keep


def _native_head(lib: Library, head: wire.Head) -> _NativeHead:
    header, keep, template = head.header, [], library.Request()
    lib.request_init(ctypes.byref(template), ctypes.sizeof(template))

    def list_of(kind: Any, values: Any) -> int:
        """The address of a copy that stays."""
        keep.append((kind * len(values))(*values))
        return ctypes.addressof(keep[-1])

    for tensor, spec in ((template.q, header.q), (template.k, header.k), (template.v, header.v)):
        tensor.dtype, tensor.rank = spec.dtype - 1, len(spec.shape)
        tensor.shape = list_of(ctypes.c_int64, spec.shape)
    template.layout, template.causal, template.priority = header.layout - 1, header.causal, header.priority
    for side, given in (("left", library.GIVEN_WINDOW_LEFT), ("right", library.GIVEN_WINDOW_RIGHT)):
        if header.window.HasField(side):
            setattr(template, f"window_{side}", getattr(header.window, side))
            template.given |= given
    for name, given in (("scale", library.GIVEN_SCALE), ("softcap", library.GIVEN_SOFTCAP)):
        if header.HasField(name):
            setattr(template, name, getattr(header, name))
            template.given |= given
    template.alibi_slopes = list_of(ctypes.c_float, header.alibi_slopes)
    template.alibi_slopes_count = len(header.alibi_slopes)
    for name in ("cu_seqlens_q", "cu_seqlens_kv"):
        values = getattr(header, name)
        setattr(template, name, list_of(ctypes.c_int64, values))
        setattr(template, f"{name}_count", len(values))
    template.waits_at_once = 1
    native = _NativeHead(template, keep)
    head.native = native
    return native


def _address_of(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _timeout_us(deadline: Optional[float]) -> int:
    end = end_of(deadline)
    return library.NO_TIMEOUT if end is None else math.ceil((end - time.monotonic()) * 1e6)
