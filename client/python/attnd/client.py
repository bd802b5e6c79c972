"""The client for threads."""

from __future__ import annotations

import collections
import concurrent.futures
import threading
import weakref
from typing import Any, Deque, Iterable, List, Optional, Sequence, Tuple, TypeVar, Union

from attnd import client_library as library
from attnd.connection import Call, Connection
from attnd.flow import Core
from attnd.native import Native
from attnd.problem import Problem, Result, ServerInfo, Window
from attnd.steps import Sleep, Step, Steps, Unary, Work

T = TypeVar("T")
Output = Union[Any, Tuple[Any, Any]]
# Calls of `submit` that are under way at a time; more wait for a thread.
_MAX_SUBMITTED = 64


class Client:
    """A connection to one server; serves a whole process, from any thread.

        with attnd.Client("127.0.0.1:7070") as client:
            o = client.attention(q, k, v, causal=True)

    Calls are sent again by rule (Compute has no side effects): UNAVAILABLE; RESOURCE_EXHAUSTED where the server says
    when; UNKNOWN and INTERNAL that are not attnd's own. Within the deadline, and within a budget of a tenth of the calls.

    A fork takes no client along: in the child, calls raise FailedPrecondition. Spawn processes that are to make calls.
    """

    def __init__(
        self,
        address: str,
        *,
        transport: str = "auto",
        max_tries: int = 4,
        local_socket: Optional[str] = None,
        max_region_bytes: int = 2 << 30,
    ):
        """Does not wait for the server; the first call does.

        address: "host:port" or "unix:/path".
        transport: "auto" shares memory with a server on this host from 64 KiB of Q, K and V on, takes a stream above 64
            MiB and one message else; "unary", "stream" and "region" force one.
        max_tries: how often a call is sent at most; 1: no retries.
        local_socket: the server's --local_socket; None: where it is by default; "none": no shared memory.
        max_region_bytes: of memory shared with the server, in use or kept.
        """
        self._core = Core(address, transport, max_tries, local_socket, max_region_bytes)
        found = library.find()
        self._native = Native(found, self._core, max_tries, local_socket, max_region_bytes) if found else None
        if self._native is None:
            self._connection = Connection(self._core)
        else:
            weakref.finalize(self, self._native.close)
        self._lock = threading.Lock()
        self._pool: Optional[concurrent.futures.ThreadPoolExecutor] = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def engine(self) -> str:
        """What carries out calls: "native", the C++ client, where its library is found; else "grpcio".

        $ATTND_CLIENT_LIBRARY names the library; set to nothing, none is used.
        """
        return "grpcio" if self._native is None else "native"

    def close(self) -> None:
        """Cancels what is under way."""
        self._core.close()
        if self._core.is_forked():
            return  # gRPC's threads are the parent's
        (self._native or self._connection).close()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def attention(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        causal: Union[bool, str] = False,
        window: Optional[Window] = None,
        softcap: Optional[float] = None,
        alibi_slopes: Optional[Sequence[float]] = None,
        scale: Optional[float] = None,
        layout: str = "bhsd",
        lse: bool = False,
        cu_seqlens_q: Optional[Sequence[int]] = None,
        cu_seqlens_k: Optional[Sequence[int]] = None,
        deadline: Optional[float] = None,
        priority: int = 0,
        out: Any = None,
    ) -> Output:
        """O, or (O, LSE) with `lse`. The arguments are Problem's, which has shapes and units; raises Error."""
        problem = Problem(
            q, k, v, causal, window, softcap, alibi_slopes, scale, layout, lse, cu_seqlens_q, cu_seqlens_k, deadline,
            priority, out,
        )  # fmt: skip
        return output_of(problem, self.compute(problem))

    def compute(self, problem: Problem) -> Result:
        """As `attention`, with the server's account of the call."""
        return self._compute(problem, None)

    def submit(self, problem: Problem) -> Call:
        """Starts a call on another thread. The problem's arrays must stay as they are until it has ended."""
        self._core.check_usable()
        with self._lock:
            if self._pool is None:
                self._pool = concurrent.futures.ThreadPoolExecutor(_MAX_SUBMITTED, thread_name_prefix="attnd")
        call = Call()
        call._future = self._pool.submit(lambda: self._compute(problem, call))
        return call

    def attention_many(self, problems: Iterable[Problem], *, in_flight: int = 8) -> List[Output]:
        """What `attention` gives for each, in order, with `in_flight` calls under way at a time (64 at most).

        The first error is raised; the calls that are under way then are cancelled.
        """
        started: Deque[Tuple[Problem, Call]] = collections.deque()
        outputs: List[Output] = []

        def end_first() -> None:
            problem, call = started[0]
            outputs.append(output_of(problem, call.result()))
            started.popleft()

        try:
            for problem in problems:
                if len(started) >= in_flight:
                    end_first()
                started.append((problem, self.submit(problem)))
            while started:
                end_first()
        finally:
            for _, call in started:
                call.cancel()
            concurrent.futures.wait([call._future for _, call in started])  # till none writes to an `out` any more
        return outputs

    def server_info(self, *, deadline: Optional[float] = 10.0) -> ServerInfo:
        """What the server is and allows. `deadline` in seconds."""
        if self._native is None:
            return self._drive(self._core.server_info(deadline))
        self._core.check_usable()
        return self._native.server_info(deadline)

    def _compute(self, problem: Problem, call: Optional[Call]) -> Result:
        if self._native is None:
            return self._drive(self._core.compute(problem), call)
        self._core.check_usable()
        return self._native.compute(problem, call)

    def _drive(self, steps: Steps[T], call: Optional[Call] = None) -> T:
        self._core.check_usable()
        go_on, argument = steps.send, None
        while True:
            try:
                step = go_on(argument)
            except StopIteration as end:
                value: T = end.value
                return value
            try:
                go_on, argument = steps.send, self._carry_out(step, call)
            except BaseException as error:  # KeyboardInterrupt too: regions must be given up
                go_on, argument = steps.throw, error

    def _carry_out(self, step: Step, call: Optional[Call]) -> Any:
        if isinstance(step, Work):
            return step.run()
        if isinstance(step, Sleep):
            return self._connection.sleep(step, call or Call())
        if isinstance(step, Unary):
            return self._connection.unary(step, call)
        return self._connection.stream(step, call)


def output_of(problem: Problem, result: Result) -> Output:
    return (result.o, result.lse) if problem.lse else result.o
