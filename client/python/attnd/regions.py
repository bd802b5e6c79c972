"""Regions that a client keeps, for tensors that lie elsewhere: the server uses the copies in place."""

from __future__ import annotations

import functools
import os
import threading
import time
from typing import List, Optional, Tuple

import numpy as np

from attnd.errors import Error, FailedPrecondition, NotFound, PermissionDenied, ResourceExhausted
from attnd.region import ALIGNMENT, Region, default_socket_path
from attnd.steps import Steps, Unary, Work
from attnd.v1 import attnd_pb2 as pb
from attnd.wire import Answer, Request

# A server that was not on this host is asked again after this, for it may have been started anew.
_REFUSAL_HOLDS_S = 10.0
# To learn that the server is here must not cost a call its deadline.
_MAX_SET_UP_S = 2.0
# A kept region serves calls of this part of its size, so that small ones do not hold large ones.
_LEAST_SHARE = 8
_MIN_REGION_BYTES = 1 << 20
_WORKS_LONG = 1 << 30  # setting up blocks: never on an event loop
# Not: that the time was too short, or that the server does not answer, for it may be starting.
_REFUSALS = (NotFound, FailedPrecondition, ResourceExhausted, PermissionDenied)


def _region_bytes(size_bytes: int) -> int:
    """In steps of an eighth, so that calls that differ a little share regions. > 0."""
    step = _MIN_REGION_BYTES
    while step < size_bytes // 8:
        step *= 2
    return max(-(-size_bytes // step), 1) * step


class Regions:
    """A region serves one call at a time and is kept for the next, so that a steady load touches no fresh page.

    Invariants: 1. regions out and kept are `_held_bytes` together, at most `max_bytes`. 2. Kept ones are of the instance
    `_instance_id`. Thread-safe.
    """

    def __init__(self, local_socket: Optional[str], max_bytes: int):
        """`local_socket` is the server's; None: where it is by default; "none": there are no regions."""
        self._path = default_socket_path() if local_socket is None else local_socket
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._instance_id: Optional[str] = None
        self._kept: List[Region] = []  # used last at the end
        self._held_bytes = 0
        self._refusal: Optional[Error] = None
        self._ask_again = 0.0

    def take(self, size_bytes: int, timeout_s: float) -> Steps[Region]:
        """One of at least so many bytes. Errors of Region, remembered for a while where they are refusals."""
        # Most clients are on another host, and need not ask their server to know it.
        if self._path == "none" or not os.path.exists(self._path):
            raise NotFound(f"no server's side socket is at {self._path}")
        kept = self._take_kept(size_bytes)
        if kept is not None:
            return kept
        with self._lock:
            if self._refusal is not None and time.monotonic() < self._ask_again:
                raise self._refusal.with_traceback(None)
        region_bytes = _region_bytes(size_bytes)
        self._count(region_bytes)
        try:
            return (yield from self._new(region_bytes, min(_MAX_SET_UP_S, timeout_s)))
        except BaseException as error:
            with self._lock:
                self._held_bytes -= region_bytes
                if isinstance(error, _REFUSALS):
                    self._refusal, self._ask_again = error, time.monotonic() + _REFUSAL_HOLDS_S
            raise

    def give_back(self, region: Region) -> None:
        """Keeps it; nobody uses it any more, the server included."""
        with self._lock:
            self._kept.append(region)

    def drop(self, region: Region) -> None:
        """Ends it; the server may still be using it."""
        with self._lock:
            self._held_bytes -= region.size_bytes
        region.close()

    def close(self) -> None:
        self._forget_instance()

    def _take_kept(self, size_bytes: int) -> Optional[Region]:
        with self._lock:
            for region in reversed(self._kept[:]):
                is_too_large = region.size_bytes // _LEAST_SHARE > _region_bytes(size_bytes)
                if region.size_bytes < size_bytes or is_too_large:
                    continue
                self._kept.remove(region)
                if region.is_connected():
                    return region
                self._held_bytes -= region.size_bytes
                region.close()
        return None

    def _count(self, size_bytes: int) -> None:
        with self._lock:
            # Those that have served nobody for longest make room.
            while self._kept and size_bytes > self._max_bytes - self._held_bytes:
                region = self._kept.pop(0)
                self._held_bytes -= region.size_bytes
                region.close()
            if size_bytes > self._max_bytes - self._held_bytes:
                raise ResourceExhausted(
                    f"a region of {size_bytes} bytes does not fit: the client's calls hold {self._held_bytes}"
                    f" of max_region_bytes {self._max_bytes}"
                )
            self._held_bytes += size_bytes

    def _forget_instance(self) -> None:
        with self._lock:
            self._instance_id = None
            for region in self._kept:
                self._held_bytes -= region.size_bytes
                region.close()
            self._kept.clear()

    def _new(self, size_bytes: int, timeout_s: float) -> Steps[Region]:
        for _ in range(2):
            instance_id = self._instance_id
            if instance_id is None:
                info = pb.GetServerInfoResponse.FromString((yield Unary("GetServerInfo", b"", timeout_s)))
                self._instance_id = instance_id = info.instance_id
            try:
                make = functools.partial(Region, self._path, instance_id, size_bytes, timeout_s)
                region: Region = yield Work(make, _WORKS_LONG)
                return region
            except FailedPrecondition as error:
                # Another instance: perhaps the server has been started anew since it was asked.
                self._forget_instance()
                refusal = error
        raise refusal


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


class Staged:
    """A request whose tensors are copied into a region, and whose outputs come out of it."""

    def __init__(self, request: Request, region: Region):
        self._request = request
        self._region = region
        self._at = 0
        self.header = pb.ComputeHeader()
        self.header.CopyFrom(request.header)
        self._inputs = [self._place(tensor.array) for tensor in request.inputs]
        for spec, place in zip((self.header.q, self.header.k, self.header.v), self._inputs):
            self._name(spec.region, place)
        q = request.inputs[0].array
        self._o = self._place(q)
        self._name(self.header.o_destination.region, self._o)
        self._lse: Optional[Tuple[int, np.ndarray]] = None
        if request.lse_shape is not None:
            self._lse = self._place(np.empty(request.lse_shape, np.float32))
            self._name(self.header.lse_destination.region, self._lse)

    @staticmethod
    def size_bytes(request: Request) -> int:
        lse_shape = request.lse_shape
        lse_bytes = 0 if lse_shape is None else 4 * int(np.prod(lse_shape))
        sizes = [tensor.array.nbytes for tensor in request.inputs]
        return sum(map(_aligned, [*sizes, sizes[0], lse_bytes]))

    def _place(self, like: np.ndarray) -> Tuple[int, np.ndarray]:
        """(offset, array) of the next bytes of the region, of `like`'s shape."""
        offset, self._at = self._at, self._at + _aligned(like.nbytes)
        return offset, self._region.bytes[offset : offset + like.nbytes].view(like.dtype).reshape(like.shape)

    def _name(self, range_: pb.RegionRange, place: Tuple[int, np.ndarray]) -> None:
        range_.handle, range_.offset_bytes = self._region.handle, place[0]

    def copy_in(self) -> None:
        for tensor, (_, array) in zip(self._request.inputs, self._inputs):
            array[...] = tensor.array

    def copy_out(self, answer: Answer) -> None:
        answer.o[...] = self._o[1]
        if answer.lse is not None and self._lse is not None:
            answer.lse[...] = self._lse[1]
