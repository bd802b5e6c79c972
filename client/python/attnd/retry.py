"""When a failed try is tried again. Pure: the random number comes from outside. The rules are those of the C++ client."""

from __future__ import annotations

import threading
from typing import Optional

from attnd.errors import Error

MAX_TRIES = 4
FIRST_BACKOFF_S = 0.02
MAX_BACKOFF_S = 1.0
# Longer than any queue of a server that means to be asked again.
MAX_PUSHBACK_S = 60.0


def parse_pushback_ms(trailer: str) -> int:
    """The value of grpc-retry-pushback-ms; what is no number counts as "never", as gRPC has it."""
    try:
        return int(trailer)
    except ValueError:
        return -1


def _is_retryable(error: Error) -> bool:
    if error.code == "UNAVAILABLE":
        return True
    if error.code == "RESOURCE_EXHAUSTED":
        return error.pushback_ms is not None
    # Without attnd's trailer a node was lost, or something in between spoke.
    return error.code in ("UNKNOWN", "INTERNAL") and not error.from_attnd


def wait_s(error: Error, tries: int, max_tries: int, left_s: Optional[float], random: float) -> Optional[float]:
    """How long to wait after the try number `tries` failed; None: no other one. `random` is in [0, 1)."""
    if not _is_retryable(error) or tries >= max_tries:
        return None
    if error.pushback_ms is None:
        wait = min(FIRST_BACKOFF_S * 2 ** (tries - 1), MAX_BACKOFF_S) * (0.8 + 0.4 * random)
    elif 0 <= error.pushback_ms <= MAX_PUSHBACK_S * 1e3:
        wait = error.pushback_ms * 1e-3
    else:
        return None
    return None if left_s is not None and wait >= left_s else wait


class Budget:
    """Retries are at most a tenth of the calls, with a reserve of 10 (100 at most): no flood on a failing server."""

    RATIO = 0.1
    RESERVE = 10.0
    MOST = 100.0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens = self.RESERVE

    def on_call(self) -> None:
        with self._lock:
            self._tokens = min(self.MOST, self._tokens + self.RATIO)

    def take(self) -> bool:
        """False, and nothing is taken, when less than one token is left."""
        with self._lock:
            if self._tokens < 1 - 1e-9:  # ten times 0.1 is a whole token
                return False
            self._tokens -= 1
            return True
