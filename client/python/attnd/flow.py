"""The life of a call, and what the two clients share."""

from __future__ import annotations

import math
import os
import random
import time
from typing import Any, Callable, Iterable, Optional, Tuple

from attnd import retry, wire
from attnd.errors import DeadlineExceeded, Error, FailedPrecondition, InvalidArgument, NotFound, field_of, hint_for, of_code
from attnd.problem import Problem, Result, ServerInfo
from attnd.regions import Regions, Staged
from attnd.steps import Sleep, Step, Steps, Stream, Unary, Work
from attnd.v1 import attnd_pb2 as pb
from attnd.wire import Answer, Request

SERVICE = "/attnd.v1.AttentionService/"
# As the C++ client: from so many bytes of Q, K and V on a region is faster than a message, and a message is a stream.
REGION_FROM_BYTES = 64 << 10
STREAM_FROM_BYTES = 64 << 20
# Messages of this size and more have a connection of their own, so that they do not delay small ones.
BULK_BYTES = 64 << 10
_FOREVER_S = 100 * 365 * 86400.0  # as good as no deadline, and does not overflow gRPC's clock
TRANSPORTS = ("auto", "unary", "stream", "region")


def channel_options(address: str) -> list[Tuple[str, Any]]:
    """The same as the C++ client's (client/channel.cc says why)."""
    options: list[Tuple[str, Any]] = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.keepalive_time_ms", 600_000),
        ("grpc.keepalive_timeout_ms", 10_000),
    ]
    if address.startswith(("unix:", "localhost:", "127.", "[::1]:")):
        options.append(("grpc.enable_http_proxy", 0))
    return options


def metadata(step: Step) -> Tuple[Tuple[str, str], ...]:
    """The server reserves memory for a message of this size before it reads it."""
    size_bytes = len(step.message) if isinstance(step, Unary) else wire.MAX_STREAM_MESSAGE_BYTES
    return (("attnd-request-bytes", str(size_bytes)),)


def is_bulk(step: Step) -> bool:
    return isinstance(step, Stream) or (isinstance(step, Unary) and len(step.message) >= BULK_BYTES)


class Core:
    """A client but for its connections. Thread-safe."""

    def __init__(self, address: str, transport: str, max_tries: int, local_socket: Optional[str], max_region_bytes: int):
        host, _, port = address.rpartition(":")
        if not (address.startswith("unix:") and port) and not (host and port.isdigit() and 0 < int(port) < 65536):
            raise InvalidArgument(f"address {address!r} is neither host:port nor unix:/path", field="address")
        if transport not in TRANSPORTS:
            raise InvalidArgument(f"transport is {transport!r}, must be one of {TRANSPORTS}", field="transport")
        self.address = address
        self.transport = transport
        self._max_tries = max_tries
        self._budget = retry.Budget()
        self.regions = Regions(local_socket, max_region_bytes)
        self._pid = os.getpid()
        self._is_closed = False

    def check_usable(self) -> None:
        if self._is_closed:
            raise FailedPrecondition("the client is closed")
        if self.is_forked():
            raise FailedPrecondition(
                f"the client was made in process {self._pid}, this is its fork {os.getpid()}: gRPC does not survive a fork",
                hint="start processes by multiprocessing's 'spawn' or 'forkserver', and make a client in each",
            )

    def is_forked(self) -> bool:
        return self._pid != os.getpid()

    def close(self) -> None:
        self._is_closed = True
        self.regions.close()

    def error_of(self, code: str, details: Optional[str], trailers: Optional[Iterable[Any]]) -> Error:
        """A failed try's."""
        message = details or ""
        field = field_of(message) if code == "INVALID_ARGUMENT" else None
        error = of_code(code, message, field=field)
        for key, value in trailers or ():
            if key == "attnd-version":
                error.from_attnd = True
            if key == "grpc-retry-pushback-ms":
                error.pushback_ms = retry.parse_pushback_ms(value)
            if key == "attnd-untouched":
                error.untouched = True
        error.hint = hint_for(error, self.address)
        return error

    def server_info(self, deadline: Optional[float]) -> Steps[ServerInfo]:
        info = pb.GetServerInfoResponse.FromString((yield Unary("GetServerInfo", b"", deadline)))
        limits = info.limits
        return ServerInfo(
            instance_id=info.instance_id, version=info.version, backend=info.backend, backend_reason=info.backend_reason,
            devices=tuple(f"{device.id}: {device.name}" for device in info.devices),
            max_unary_bytes=limits.max_unary_bytes, max_stream_bytes=limits.max_stream_bytes,
            max_head_dim=limits.max_head_dim, takes_cuda_memory=info.takes_cuda_memory,
        )  # fmt: skip

    def compute(self, problem: Problem) -> Steps[Result]:
        request = wire.read(problem)
        end = end_of(problem.deadline)
        if self._may_use_region(request):
            region = yield from self._region_for(request, end)
            if region is not None:
                try:
                    return (yield from self._by_region(request, region, end))
                except NotFound:  # the server that knew the region is gone
                    if self.transport == "region":
                        raise
        is_large = request.input_bytes > STREAM_FROM_BYTES
        if self.transport == "stream" or (self.transport == "auto" and is_large):
            return (yield from self._by_stream(request, end))
        try:
            return (yield from self._by_message(request, end))
        except Error as error:
            # Refused for good, and a stream may do.
            is_final = error.code == "RESOURCE_EXHAUSTED" and error.from_attnd and (error.pushback_ms or 0) < 0
            if self.transport != "auto" or not is_final:
                raise
            tries = error.tries
        return (yield from self._by_stream(request, end, tries))

    def _may_use_region(self, request: Request) -> bool:
        is_worth_it = self.transport == "auto" and request.input_bytes >= REGION_FROM_BYTES
        return is_worth_it or self.transport == "region"

    def _region_for(self, request: Request, end: Optional[float]) -> Steps[Any]:
        """None: there is none, and the call goes another way."""
        left_s = _left_s(end)
        if left_s is not None and left_s <= 0:
            return None  # the other way says so
        try:
            return (yield from self.regions.take(Staged.size_bytes(request), math.inf if left_s is None else left_s))
        except Error:
            if self.transport == "region":
                raise
            return None

    def _by_region(self, request: Request, region: Any, end: Optional[float]) -> Steps[Result]:
        try:
            staged, answer = Staged(request, region), Answer(request, in_region=True)
            yield Work(staged.copy_in, request.input_bytes)
            message = wire.encode_header(staged.header)
            reply, tries = yield from self._try(lambda left_s: Unary("Compute", message, left_s), end)
            answer.take_unary(reply)
            yield Work(lambda: staged.copy_out(answer), answer.o.nbytes)
        except BaseException as error:
            if isinstance(error, Error) and error.untouched:
                self.regions.give_back(region)
            else:
                self.regions.drop(region)  # the server may not be done with it
            raise
        self.regions.give_back(region)
        return answer.checked_result(tries)

    def _by_message(self, request: Request, end: Optional[float]) -> Steps[Result]:
        if request.input_bytes > wire.MAX_MESSAGE_BYTES - request.header.ByteSize() - 64:
            raise InvalidArgument(
                f"q, k and v have {request.input_bytes} bytes, a message has {wire.MAX_MESSAGE_BYTES} at most",
                hint="transport 'stream' or 'auto' has no such limit",
            )
        message = wire.encode_unary(request)
        reply, tries = yield from self._try(lambda left_s: Unary("Compute", message, left_s), end)
        answer = Answer(request)
        answer.take_unary(reply)
        return answer.checked_result(tries)

    def _by_stream(self, request: Request, end: Optional[float], tries: int = 0) -> Steps[Result]:
        answers = []

        def step(left_s: Optional[float]) -> Step:
            answers.append(Answer(request))  # of this try: nothing of one before
            return Stream(wire.encode_stream(request), answers[-1].take_streamed, left_s)

        _, tries = yield from self._try(step, end, tries)
        return answers[-1].checked_result(tries)

    def _try(self, step: Callable[[Optional[float]], Step], end: Optional[float], tries: int = 0) -> Steps[Tuple[Any, int]]:
        """(what the step gave, number of tries, those before included)."""
        self._budget.on_call()
        untouched = True
        while True:
            left_s = _left_s(end)
            if left_s is not None and left_s <= 0:
                late = DeadlineExceeded("the deadline passed before the call was sent")
                late.hint = hint_for(late, self.address)
                raise late
            tries += 1
            sent = step(left_s)
            try:
                return (yield sent), tries
            except Error as error:
                error.tries = tries
                untouched = error.untouched = untouched and error.untouched
                wait_s = retry.wait_s(error, tries, self._max_tries, _left_s(end), random.random())
                if wait_s is None or not self._budget.take():
                    raise
                is_down = error.code == "UNAVAILABLE" and not error.from_attnd
            yield Sleep(wait_s, is_bulk(sent), is_down)


def end_of(deadline: Optional[float]) -> Optional[float]:
    """On the monotonic clock."""
    if deadline is None:
        return None
    try:
        end = time.monotonic() + float(deadline)
    except (TypeError, ValueError):
        end = math.nan
    if math.isnan(end):
        raise InvalidArgument(f"deadline is {deadline!r}, must be in seconds, or None for none", field="deadline")
    return end if deadline < _FOREVER_S else None


def _left_s(end: Optional[float]) -> Optional[float]:
    return None if end is None else end - time.monotonic()
