"""What calls raise."""

from __future__ import annotations

import re
from typing import Dict, Optional, Type

# Names in the server's messages -> arguments of this client.
_ARGUMENTS = {
    "q": "q", "k": "k", "v": "v", "q_heads": "q", "kv_heads": "k", "head_dim": "q",
    "layout": "layout", "causal": "causal", "window": "window", "scale": "scale", "softcap": "softcap",
    "alibi_slopes": "alibi_slopes", "cu_seqlens_q": "cu_seqlens_q", "cu_seqlens_kv": "cu_seqlens_k",
    "want_lse": "lse", "priority": "priority", "timeout_us": "deadline",
}  # fmt: skip


class Error(Exception):
    """Base of what this package raises.

    code: gRPC's name of the kind of error, "INVALID_ARGUMENT" and so on.
    field: the argument of `attention` that it is about, where it is about one.
    hint: what to do, where something helps.
    tries: how often the call was sent.
    """

    code = "UNKNOWN"

    def __init__(self, message: str, *, field: Optional[str] = None, hint: Optional[str] = None):
        super().__init__(message)
        self.message = message
        self.field = field
        self.hint = hint
        self.tries = 0
        # Of the server's trailers: whether attnd itself answered, when to try again (negative: never), and whether the
        # call's regions are its own again (of every try).
        self.from_attnd = False
        self.pushback_ms: Optional[int] = None
        self.untouched = False

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.code}: {self.message}{hint}"


class InvalidArgument(Error, ValueError):
    """The problem is malformed. `field` names the argument, the message both values."""

    code = "INVALID_ARGUMENT"


class Unimplemented(Error, NotImplementedError):
    """This server cannot do that; the message says what would be needed."""

    code = "UNIMPLEMENTED"


class ResourceExhausted(Error):
    """A queue or a budget is full, and stayed so through all tries; or the problem can never fit."""

    code = "RESOURCE_EXHAUSTED"


class DeadlineExceeded(Error, TimeoutError):
    """There was no answer within `deadline`."""

    code = "DEADLINE_EXCEEDED"


class Cancelled(Error):
    """The caller cancelled the call, or closed the client."""

    code = "CANCELLED"


class Unavailable(Error, ConnectionError):
    """No server, or one that drains, and that stayed so through all tries."""

    code = "UNAVAILABLE"


class NotFound(Error):
    """No server's side socket; or the server does not have a region any more."""

    code = "NOT_FOUND"


class FailedPrecondition(Error):
    """The client cannot be used (closed, or of another process); or another server's side socket."""

    code = "FAILED_PRECONDITION"


class PermissionDenied(Error):
    """The server's side socket is another user's."""

    code = "PERMISSION_DENIED"


class Internal(Error):
    """The server failed, or its answer does not fit the request."""

    code = "INTERNAL"


class DataLoss(Error):
    """Pages of a region were gone during the call."""

    code = "DATA_LOSS"


_BY_CODE: Dict[str, Type[Error]] = {
    kind.code: kind
    for kind in (
        InvalidArgument, Unimplemented, ResourceExhausted, DeadlineExceeded, Cancelled, Unavailable, NotFound,
        FailedPrecondition, PermissionDenied, Internal, DataLoss,
    )
}  # fmt: skip


def of_code(code: str, message: str, **facts: Optional[str]) -> Error:
    """The exception for a gRPC code's name."""
    if code in _BY_CODE:
        return _BY_CODE[code](message, **facts)
    error = Error(message, **facts)
    error.code = code
    return error


def field_of(message: str) -> Optional[str]:
    """The argument that a server's message begins with."""
    word = re.match(r"[a-z_]+", message)
    return _ARGUMENTS.get(word.group()) if word else None


def hint_for(error: Error, address: str) -> Optional[str]:
    """What helps against an error that came from the server at `address`, or from the way there."""
    if error.code == "UNAVAILABLE":
        return f"is attnd running at {address}?"
    if error.code == "RESOURCE_EXHAUSTED":
        is_for_good = error.pushback_ms is not None and error.pushback_ms < 0
        return "split the problem" if is_for_good else "try again later, or with fewer calls at once"
    if error.code == "DEADLINE_EXCEEDED":
        return "a longer deadline, or a smaller problem"
    if error.field in ("q", "k", "v"):
        return "layout 'bhsd' is [batch, heads, len, head_dim], 'bshd' [batch, len, heads, head_dim], 'thd' packed"
    return None
