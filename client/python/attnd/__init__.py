"""Client of attnd, exact attention as a service.

    import attnd

    with attnd.Client("127.0.0.1:7070") as client:
        o = client.attention(q, k, v, causal=True)

`Client` is for threads, `AsyncClient` for asyncio; `Problem` has the arguments with their shapes and units; errors are
subclasses of `Error`. `attnd.torch.sdpa` stands in for torch.nn.functional.scaled_dot_product_attention.
"""

from attnd.aio import AsyncClient
from attnd.client import Client
from attnd.connection import Call
from attnd.errors import (
    Cancelled, DataLoss, DeadlineExceeded, Error, FailedPrecondition, Internal, InvalidArgument, NotFound, PermissionDenied,
    ResourceExhausted, Unavailable, Unimplemented,
)  # fmt: skip
from attnd.problem import Problem, Result, ServerInfo, Timing

__version__ = "0.1.0"
__all__ = [
    "AsyncClient", "Call", "Cancelled", "Client", "DataLoss", "DeadlineExceeded", "Error", "FailedPrecondition",
    "Internal", "InvalidArgument", "NotFound", "PermissionDenied", "Problem", "ResourceExhausted", "Result", "ServerInfo",
    "Timing", "Unavailable", "Unimplemented",
]  # fmt: skip
