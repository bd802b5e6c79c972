"""What a call does, step by step, for a driver to carry out: `Client` on its thread, `AsyncClient` on an event loop.

The logic of calls is generators that yield these and are sent what they gave, or thrown the Error that they raised. So
retries, regions and transports are written once.
"""

from __future__ import annotations

from typing import Any, Callable, Generator, Iterator, NamedTuple, Optional, TypeVar, Union


class Unary(NamedTuple):
    """One message there, one back: gives its bytes."""

    method: str
    message: bytes
    timeout_s: Optional[float]


class Stream(NamedTuple):
    """A ComputeStream: sends all `messages`, hands each that comes to `take`; gives None."""

    messages: Iterator[bytes]
    take: Callable[[bytes], None]
    timeout_s: Optional[float]


class Sleep(NamedTuple):
    """A wait before another try."""

    seconds: float
    is_bulk: bool  # which connection that goes by
    is_down: bool  # nothing answered there


class Work(NamedTuple):
    """Something that blocks, or copies `size_bytes`: gives what it returns."""

    run: Callable[[], Any]
    size_bytes: int


Step = Union[Unary, Stream, Sleep, Work]
T = TypeVar("T")
Steps = Generator[Step, Any, T]
