"""Connections to a server by gRPC's API for threads."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from typing import Any, Optional

import grpc

from attnd.errors import Cancelled, Error, Internal
from attnd.flow import SERVICE, Core, channel_options, is_bulk, metadata
from attnd.problem import Result
from attnd.steps import Sleep, Stream, Unary


class Call:
    """A call under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rpc: Any = None
        self._is_cancelled = threading.Event()
        self._future: Any = None

    def cancel(self) -> None:
        """`result` raises Cancelled, unless the answer was there first."""
        self._is_cancelled.set()
        if self._future is not None:
            self._future.cancel()
        with self._lock:
            if self._rpc is not None:
                self._rpc.cancel()

    def done(self) -> bool:
        return bool(self._future.done())

    def result(self, timeout: Optional[float] = None) -> Result:
        """Waits, `timeout` seconds at most (TimeoutError); raises what the call raised."""
        try:
            result: Result = self._future.result(timeout)
            return result
        except concurrent.futures.CancelledError:
            raise Cancelled("cancelled before it was sent") from None
        except concurrent.futures.TimeoutError:
            if self._future.done():
                raise  # the call's own DeadlineExceeded
            raise TimeoutError(f"the call has not ended within {timeout} s") from None

    def _runs(self, rpc: Any) -> None:
        """From now on `cancel` ends `rpc`."""
        with self._lock:
            self._rpc = rpc
            if self._is_cancelled.is_set():
                rpc.cancel()

    def _wait(self, seconds: float) -> None:
        if self._is_cancelled.wait(seconds):
            raise Cancelled("cancelled while it waited for another try")


class Connection:
    """One channel for small messages, and one for large ones and streams. Thread-safe."""

    def __init__(self, core: Core):
        self._core = core
        options = channel_options(core.address)
        self._control, self._bulk = (grpc.insecure_channel(core.address, options=options) for _ in range(2))
        self._methods = {
            (method, bulk): channel.unary_unary(SERVICE + method)
            for method in ("Compute", "GetServerInfo")
            for bulk, channel in ((False, self._control), (True, self._bulk))
        }
        self._compute_stream = self._bulk.stream_stream(SERVICE + "ComputeStream")

    def close(self) -> None:
        """Cancels what is under way."""
        self._control.close()
        self._bulk.close()

    def unary(self, step: Unary, call: Optional[Call]) -> bytes:
        method = self._methods[step.method, is_bulk(step)]
        answer: bytes
        try:
            if call is None:  # which wakes up sooner than a future's waiter
                answer = method(step.message, timeout=step.timeout_s, metadata=metadata(step))
                return answer
            rpc = method.future(step.message, timeout=step.timeout_s, metadata=metadata(step))
            call._runs(rpc)
            answer = rpc.result()
            return answer
        except grpc.FutureCancelledError:
            raise Cancelled("cancelled by the caller") from None
        except (grpc.RpcError, ValueError) as error:
            raise self._error_of(error) from None

    def sleep(self, step: Sleep, call: Call) -> None:
        """Ends early where the server is found again."""
        end = time.monotonic() + step.seconds
        if step.is_down:
            # Some versions try to connect during calls, and between calls every 5 s only.
            ask = self._methods["GetServerInfo", step.is_bulk].future
            try:
                rpc = ask(b"", timeout=step.seconds, wait_for_ready=True)
                call._runs(rpc)
                rpc.result()
                return
            except (grpc.RpcError, grpc.FutureCancelledError, ValueError):
                pass  # it is for the next try to tell
        call._wait(end - time.monotonic())

    def stream(self, step: Stream, call: Optional[Call]) -> None:
        rpc: Any = None
        try:
            rpc = self._compute_stream(step.messages, timeout=step.timeout_s, metadata=metadata(step))
            if call is not None:
                call._runs(rpc)
            for message in rpc:
                step.take(message)
        except (grpc.RpcError, ValueError) as error:
            raise self._error_of(error) from None
        finally:
            if rpc is not None:
                rpc.cancel()  # does nothing once it has ended

    def _error_of(self, error: Any) -> Error:
        if isinstance(error, grpc.RpcError):
            return self._core.error_of(error.code().name, error.details(), error.trailing_metadata())
        self._core.check_usable()  # ValueError is gRPC's word for a closed channel
        return Internal(str(error))
