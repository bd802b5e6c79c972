"""A drop-in for torch.nn.functional.scaled_dot_product_attention.

    from attnd.torch import sdpa

    out = sdpa(query, key, value, is_causal=True)
"""

from __future__ import annotations

import os
import threading
from typing import Optional

import torch

from attnd.client import Client
from attnd.errors import InvalidArgument

DEFAULT_ADDRESS = "127.0.0.1:7070"
_lock = threading.Lock()
_clients: dict[int, Client] = {}  # of each process: a fork's must be its own


def _default_client() -> Client:
    with _lock:
        if os.getpid() not in _clients:
            _clients[os.getpid()] = Client(os.environ.get("ATTND_ADDRESS", DEFAULT_ADDRESS))
        return _clients[os.getpid()]


def _refuse(field: str, message: str, hint: str) -> InvalidArgument:
    return InvalidArgument(message, field=field, hint=hint)


def _check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: object, dropout_p: float) -> None:
    if attn_mask is not None:
        raise _refuse(
            "attn_mask",
            "attn_mask is given; attnd takes no mask of single elements",
            "is_causal=True; or attnd.Client.attention with causal=, window=, alibi_slopes= or cu_seqlens_q=/_k=",
        )
    if dropout_p > 0:
        raise _refuse("dropout_p", f"dropout_p is {dropout_p}; attnd has no dropout", "dropout_p=0.0, as in inference")
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        raise _refuse("query", "a tensor requires grad; attnd computes no gradients", "torch.no_grad(), or x.detach()")
    if query.dim() < 2 or not query.dim() == key.dim() == value.dim():
        raise _refuse("query", "query, key and value must have the same rank, 2 or more", "[..., heads, len, head_dim]")
    if value.shape[-1] != query.shape[-1]:
        raise _refuse(
            "value",
            f"value has head_dim {value.shape[-1]}, query {query.shape[-1]}; attnd has one for all",
            "pad value with zeros, and cut the result",
        )


def _as_bhsd(x: torch.Tensor, leading: torch.Size) -> torch.Tensor:
    """[batch, heads, len, head_dim], the leading axes broadcast; a view where strides allow it."""
    heads = x.shape[-3] if x.dim() >= 3 else 1
    x = x.reshape(*x.shape[:-3], heads, *x.shape[-2:]).expand(*leading, heads, *x.shape[-2:])
    return x.reshape(-1, heads, *x.shape[-2:])


def sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Optional[torch.Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
    *,
    client: Optional[Client] = None,
    deadline: Optional[float] = None,
) -> torch.Tensor:
    """What torch.nn.functional.scaled_dot_product_attention(...) gives, computed by attnd.

    query [..., heads, q_len, head_dim], key and value [..., heads or kv_heads, kv_len, head_dim]: float32, float16 or
    bfloat16, on any device; the result is on query's. is_causal is PyTorch's: row i sees keys up to i (attnd's
    "top-left"). attn_mask, dropout_p > 0 and gradients raise InvalidArgument, with what to use instead.

    client: default: one for this process, at $ATTND_ADDRESS or 127.0.0.1:7070. deadline: in seconds.
    """
    _check(query, key, value, attn_mask, dropout_p)
    tensors = (query.detach(), key.detach(), value.detach())
    if not enable_gqa and query.dim() >= 3:
        heads = max(x.shape[-3] for x in tensors)
        if any(x.shape[-3] not in (1, heads) for x in tensors):
            raise _refuse("key", f"key has {key.shape[-3]} heads, query {query.shape[-3]}", "enable_gqa=True")
        tensors = tuple(x.expand(*x.shape[:-3], heads, *x.shape[-2:]) for x in tensors)
    leading = torch.broadcast_shapes(*(x.shape[:-3] for x in tensors))
    q, k, v = (_as_bhsd(x, leading).cpu() for x in tensors)
    out = torch.empty(q.shape, dtype=q.dtype)
    (client or _default_client()).attention(
        q, k, v, causal="top-left" if is_causal else False, scale=scale, deadline=deadline, out=out
    )
    shape = (*leading, *q.shape[1:]) if query.dim() >= 3 else q.shape[2:]
    return out.reshape(shape).to(query.device)
