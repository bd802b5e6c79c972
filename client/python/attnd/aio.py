"""The client for asyncio."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Iterable, List, Optional, Sequence, TypeVar, Union

import grpc
import grpc.aio

from attnd.client import Output, output_of
from attnd.connection import Call, Connection
from attnd.errors import FailedPrecondition
from attnd.flow import SERVICE, Core, channel_options, is_bulk, metadata
from attnd.problem import Problem, Result, ServerInfo, Window
from attnd.steps import Sleep, Step, Steps, Stream, Work

T = TypeVar("T")
# A copy of this size takes less than another thread's waking up.
_INLINE_BYTES = 1 << 20


class AsyncClient:
    """As Client, for one event loop: that of its first call.

        async with attnd.AsyncClient("127.0.0.1:7070") as client:
            o = await client.attention(q, k, v, causal=True)

    To cancel a call, cancel its task.
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
        """The arguments are Client's."""
        self._core = Core(address, transport, max_tries, local_socket, max_region_bytes)
        self._loop: Optional[asyncio.AbstractEventLoop] = None

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def engine(self) -> str:
        """What carries out calls: "grpcio" (see Client.engine)."""
        return "grpcio"

    async def close(self) -> None:
        """Cancels what is under way."""
        self._core.close()
        if self._loop is not None and not self._core.is_forked():
            await self._control.close()
            await self._bulk.close()
            self._threads.close()

    async def attention(
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
        return output_of(problem, await self.compute(problem))

    async def compute(self, problem: Problem) -> Result:
        """As `attention`, with the server's account of the call."""
        return await self._drive(self._core.compute(problem))

    async def attention_many(self, problems: Iterable[Problem], *, in_flight: int = 8) -> List[Output]:
        """What `attention` gives for each, in order, with `in_flight` calls under way at a time.

        The first error is raised; the calls that are under way then are cancelled.
        """
        free = asyncio.Semaphore(in_flight)

        async def one(problem: Problem) -> Output:
            async with free:
                return output_of(problem, await self.compute(problem))

        tasks = [asyncio.ensure_future(one(problem)) for problem in problems]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # till none writes to an `out` any more

    async def server_info(self, *, deadline: Optional[float] = 10.0) -> ServerInfo:
        """What the server is and allows. `deadline` in seconds."""
        return await self._drive(self._core.server_info(deadline))

    def _connect(self) -> None:
        """gRPC's channels belong to the loop that they are made on."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            options = channel_options(self._core.address)
            self._control, self._bulk = (grpc.aio.insecure_channel(self._core.address, options=options) for _ in range(2))
            self._threads = Connection(self._core)
            self._loop = loop
        if self._loop is not loop:
            raise FailedPrecondition("the client belongs to another event loop", hint="make a client in each loop")

    async def _drive(self, steps: Steps[T]) -> T:
        self._core.check_usable()
        self._connect()
        go_on, argument = steps.send, None
        while True:
            try:
                step = go_on(argument)
            except StopIteration as end:
                value: T = end.value
                return value
            try:
                go_on, argument = steps.send, await self._carry_out(step)
            except BaseException as error:  # a task's cancellation too: regions must be given up
                go_on, argument = steps.throw, error

    async def _carry_out(self, step: Step) -> Any:
        if isinstance(step, Work):
            return step.run() if step.size_bytes <= _INLINE_BYTES else await self._on_thread(step.run, lambda: None)
        if isinstance(step, Sleep):
            return await asyncio.sleep(step.seconds)  # gRPC's own thread tries to connect meanwhile
        if isinstance(step, Stream):
            # gRPC's asyncio loses the status of a stream that the server ends while the client writes, and the loop would
            # stand still while chunks are copied.
            call = Call()
            return await self._on_thread(lambda: self._threads.stream(step, call), call.cancel)
        try:
            channel = self._bulk if is_bulk(step) else self._control
            method = channel.unary_unary(SERVICE + step.method)
            return await method(step.message, timeout=step.timeout_s, metadata=metadata(step))
        except grpc.aio.AioRpcError as error:
            raise self._core.error_of(error.code().name, error.details(), error.trailing_metadata()) from None
        except grpc.aio.UsageError as error:  # for a closed channel
            self._core.check_usable()
            raise FailedPrecondition(str(error)) from error

    async def _on_thread(self, run: Callable[[], Any], cancel: Callable[[], None]) -> Any:
        """Waits even if this task is cancelled: `run` may be writing to memory of the caller's."""
        running = asyncio.get_running_loop().run_in_executor(None, run)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            cancel()
            await asyncio.wait([running])
            running.exception()  # has been looked at
            raise
