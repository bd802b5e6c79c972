"""Memory shared with a server on this host. The protocol is server/regions/README.md's."""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import socket
import struct
from typing import Any, Tuple

import numpy as np

from attnd.errors import (
    DeadlineExceeded, Error, FailedPrecondition, Internal, NotFound, PermissionDenied, ResourceExhausted, Unavailable,
    of_code,
)  # fmt: skip

ALIGNMENT = 256  # of tensors in a region

# server/regions/protocol/frames.h: head {magic, version, type}, then what the type has.
_MAGIC, _VERSION = 0x444E5441, 1
_HELLO, _REGISTER, _ANSWER = 1, 2, 3
_HEAD = struct.Struct("=IHH")
_HELLO_FRAME = struct.Struct("=IHH64s")
_REGISTER_FRAME = struct.Struct("=IHHq")
_ANSWER_FRAME = struct.Struct("=IHHi16s484s")
# absl::StatusCode, which an answer carries, is gRPC's numbering.
CODES = [
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
]  # fmt: skip


def default_socket_path() -> str:
    """Where a server of this user's listens by default."""
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    if not folder.startswith("/"):
        folder = f"/run/user/{os.geteuid()}"
        if os.path.islink(folder) or not os.path.isdir(folder):
            folder = f"/tmp/attnd-{os.geteuid()}"
    return f"{folder}/attnd.sock"


def _text(padded: bytes) -> str:
    return padded.split(b"\0", 1)[0].decode(errors="replace")


def _receive(side: socket.socket, frame: struct.Struct, kind: int) -> Tuple[Any, ...]:
    """The fields of the next frame after its head; raises what an answer says instead."""
    packet = side.recv(_ANSWER_FRAME.size + 1)
    if not packet:
        raise Unavailable("the server ended the connection of its side socket")
    if len(packet) < _HEAD.size or _HEAD.unpack_from(packet)[0] != _MAGIC:
        raise FailedPrecondition("what listens there is no server of attnd's")
    _, version, its_kind = _HEAD.unpack_from(packet)
    if version != _VERSION:
        raise FailedPrecondition(f"the server speaks version {version} of the side socket, must be {_VERSION}")
    if its_kind == _ANSWER and len(packet) == _ANSWER_FRAME.size:
        code, _, text = _ANSWER_FRAME.unpack(packet)[3:]
        if code != 0:
            raise of_code(CODES[code] if 0 < code < len(CODES) else "UNKNOWN", _text(text))
    if its_kind != kind or len(packet) != frame.size:
        raise Internal("the server sent a frame that does not belong there")
    return frame.unpack(packet)[3:]


def _connect(path: str, timeout_s: float) -> socket.socket:
    side = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        side.settimeout(timeout_s)
        try:
            side.connect(path)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NotFound(f"no server listens at {path}: {error}") from None
        uid = struct.unpack("=iii", side.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if uid != os.geteuid():
            raise FailedPrecondition(f"the server at {path} runs as user {uid}, this process as {os.geteuid()}")
        return side
    except BaseException:
        side.close()
        raise


def _sealed_file(size_bytes: int) -> int:
    """A memfd whose pages are all there, counted as this process' own."""
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
    if size_bytes > machine_bytes:
        raise ResourceExhausted(f"a region of {size_bytes} bytes: the machine has {machine_bytes}")
    fd = os.memfd_create("attnd-region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size_bytes)
        os.posix_fallocate(fd, 0, size_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return fd
    except BaseException:
        os.close(fd)
        raise


class Region:
    """Memory that one server maps too. It ends with this object; calls that use it then still finish there."""

    def __init__(self, path: str, instance_id: str, size_bytes: int, timeout_s: float):
        """`instance_id` is of GetServerInfo: a port that is forwarded from elsewhere looks local and is not.

        NotFound: no server at `path`. FailedPrecondition: another instance, version or user. ResourceExhausted: no
        memory, or the server's limit. DeadlineExceeded: a step took longer than `timeout_s`. Others as the server says.
        """
        self.size_bytes = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            self._side = _connect(path, timeout_s)
            try:
                self._register(instance_id)
            except BaseException:
                self._side.close()
                raise
        except Error:
            raise
        except socket.timeout:
            raise DeadlineExceeded(f"the side socket {path} took longer than {timeout_s} s") from None
        except PermissionError as error:
            raise PermissionDenied(f"{path}: {error}") from None
        except OSError as error:
            raise ResourceExhausted(f"a region of {self.size_bytes} bytes: {error}") from None

    def _register(self, instance_id: str) -> None:
        (theirs,) = _receive(self._side, _HELLO_FRAME, _HELLO)
        if _text(theirs) != instance_id:
            raise FailedPrecondition(f"the socket is instance {_text(theirs)}'s, calls go to instance {instance_id}")
        fd = _sealed_file(self.size_bytes)
        try:
            # The mapping lives as long as an array lies in it.
            self.bytes = np.frombuffer(mmap.mmap(fd, self.size_bytes), np.uint8)
            frame = _REGISTER_FRAME.pack(_MAGIC, _VERSION, _REGISTER, self.size_bytes)
            socket.send_fds(self._side, [frame], [fd])
        finally:
            os.close(fd)
        _, self.handle, _ = _receive(self._side, _ANSWER_FRAME, _ANSWER)

    def is_connected(self) -> bool:
        """False once the server has ended the connection: the handle is worth nothing then."""
        poll = select.poll()
        poll.register(self._side, 0)  # ends are told unasked
        return not poll.poll(0)

    def close(self) -> None:
        self._side.close()
