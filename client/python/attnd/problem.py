"""What is asked, and what is answered."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from attnd.v1 import attnd_pb2 as pb

Window = Tuple[Optional[int], Optional[int]]


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """One attention problem, O = softmax(scale * Q K^T) V with what is asked for on top.

    q, k, v: numpy arrays, or anything with DLPack or the buffer protocol (torch, jax, cupy); all three float32, float16
        or bfloat16 (ml_dtypes, torch, jax), with any strides. By layout:

        "bhsd"  [batch, heads, len, head_dim]      K and V may leave out the heads: one KV head
        "bshd"  [batch, len, heads, head_dim]      likewise
        "thd"   [total_tokens, heads, head_dim]    packed; likewise

        Q's heads are a multiple of K's and V's; head_dim is 1 to 256.
    causal: True or "bottom-right": row i sees keys up to i + kv_len - q_len; "top-left": up to i (as PyTorch has it).
    window: (left, right) keys around the bottom-right diagonal, inclusive at both ends; None: no bound on that side.
    softcap: x becomes softcap * tanh(x / softcap) before the masks; None or 0: off.
    alibi_slopes: a slope for each query head; slope * |i + kv_len - q_len - j| is taken off.
    scale: of Q K^T; None: 1 / sqrt(head_dim).
    lse: asks for the natural logarithm of each row's sum of exponentials too, float32: [batch, heads, len], packed
        [heads, total_tokens].
    cu_seqlens_q, cu_seqlens_k: with "thd" only: batch + 1 offsets in tokens each, from 0.
    deadline: seconds that the call may take, its retries included; None: no limit of the client's.
    priority: 1 is the highest, 9 the lowest; 0 counts as 5.
    out: where O goes: memory of q's shape and dtype, on this host; what is there after an error is of no use. None: a new
        array.
    """

    q: Any
    k: Any
    v: Any
    causal: Union[bool, str] = False
    window: Optional[Window] = None
    softcap: Optional[float] = None
    alibi_slopes: Optional[Sequence[float]] = None
    scale: Optional[float] = None
    layout: str = "bhsd"
    lse: bool = False
    cu_seqlens_q: Optional[Sequence[int]] = None
    cu_seqlens_k: Optional[Sequence[int]] = None
    deadline: Optional[float] = None
    priority: int = 0
    out: Any = None


class Timing(NamedTuple):
    """The server's own account of where a call's time went, in microseconds."""

    queue_us: int
    upload_us: int
    run_us: int
    download_us: int
    total_us: int


class Result:
    """O like q (the problem's `out`, if it had one), LSE if it was asked for, and how it went."""

    __slots__ = ("o", "lse", "tries", "_account")

    def __init__(self, o: Any, lse: Optional[np.ndarray], tries: int, account: Any):
        self.o = o
        self.lse = lse
        self.tries = tries  # how often the call was sent
        self._account = account  # pb.ComputeResponseHeader, or what has its fields

    @property
    def timing(self) -> Timing:
        return Timing(*(getattr(self._account.timing, name) for name in Timing._fields))

    @property
    def transport(self) -> str:
        """ "unary", "stream" or "region"."""
        return str(pb.Transport.Name(self._account.transport)).rpartition("_")[2].lower()

    @property
    def backend(self) -> str:
        return str(self._account.backend)

    @property
    def kernel(self) -> str:
        return str(self._account.kernel)

    @property
    def device(self) -> str:
        return str(self._account.device)

    @property
    def batch_id(self) -> int:
        """Of the batch that the problem ran in, ..."""
        return int(self._account.batch_id)

    @property
    def batch_size(self) -> int:
        """... and how many problems it held."""
        return int(self._account.batch_size)

    def __repr__(self) -> str:
        return f"Result({self.kernel}, {self.transport}, {self.timing}, tries={self.tries})"


@dataclasses.dataclass(frozen=True)
class ServerInfo:
    """What a server is, can do and allows."""

    instance_id: str
    version: str
    backend: str
    backend_reason: str
    devices: Tuple[str, ...]
    max_unary_bytes: int
    max_stream_bytes: int
    max_head_dim: int
    takes_cuda_memory: bool
