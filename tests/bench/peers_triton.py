"""A plain FlashAttention-2 forward in Triton: one block of queries a program, tiles of keys in a software pipeline, bf16.

As a program, `peers_triton.py HEAD_DIM MASK` compiles its configurations into Triton's cache, so that several at once can do that.
"""

import math
import sys

import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

# head_dim: (queries of a block, keys of a tile, warps, stages). Shared memory of 227 KB bounds them: 2 bytes each for a block of
# Q and, per stage, a tile of K and of V.
CONFIGS = {
    64: ((128, 128, 4, 3), (128, 64, 4, 3), (128, 128, 8, 3), (128, 64, 4, 4)),
    128: ((128, 128, 8, 2), (128, 64, 8, 3), (128, 128, 8, 3), (64, 64, 4, 3)),
    256: ((128, 64, 8, 2), (64, 64, 4, 2), (128, 32, 8, 3)),
}


@triton.jit
def _tile(q, k_tile, v_tile, acc, row_max, row_sum, rows, keys, scale_log2, MASKED: tl.constexpr):
    """One tile of keys: what the sums so far weigh falls by exp2(old maximum - new)."""
    scores = tl.dot(q, tl.load(k_tile)) * scale_log2
    if MASKED:
        scores = tl.where(keys[None, :] <= rows[:, None], scores, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(scores, 1))
    shrink = tl.exp2(row_max - new_max)
    p = tl.exp2(scores - new_max[:, None])
    row_sum = row_sum * shrink + tl.sum(p, 1)
    v = tl.load(v_tile)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None])
    return acc, new_max, row_sum


@triton.jit
def _forward(q_all, k_all, v_all, o_all, length, scale_log2, HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr,
             Q_BLOCK: tl.constexpr, KV_TILE: tl.constexpr):
    # Under a causal mask later blocks have more keys: they start first.
    block = tl.num_programs(0) - 1 - tl.program_id(0) if CAUSAL else tl.program_id(0)
    head = tl.program_id(1).to(tl.int64) * length * HEAD_DIM
    rows = block * Q_BLOCK + tl.arange(0, Q_BLOCK)
    keys = tl.arange(0, KV_TILE)
    dims = tl.arange(0, HEAD_DIM)
    own = head + rows[:, None] * HEAD_DIM + dims[None, :]
    # Offsets within a tile: one scalar moves on, in place of as many pointers as a tile has elements.
    k_offsets = keys[None, :] * HEAD_DIM + dims[:, None]
    v_offsets = keys[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(q_all + own)
    acc = tl.zeros([Q_BLOCK, HEAD_DIM], tl.float32)
    row_max = tl.full([Q_BLOCK], float("-inf"), tl.float32)
    row_sum = tl.zeros([Q_BLOCK], tl.float32)
    # Keys that every row of the block sees; after them those of the diagonal.
    unmasked = block * Q_BLOCK if CAUSAL else length
    for start in range(0, unmasked, KV_TILE):
        tile = head + start * HEAD_DIM
        acc, row_max, row_sum = _tile(q, k_all + tile + k_offsets, v_all + tile + v_offsets, acc, row_max, row_sum, rows,
                                      start + keys, scale_log2, False)
    if CAUSAL:
        # One or two tiles: nothing to pipeline.
        for start in tl.range(unmasked, unmasked + Q_BLOCK, KV_TILE, num_stages=1):
            tile = head + start * HEAD_DIM
            acc, row_max, row_sum = _tile(q, k_all + tile + k_offsets, v_all + tile + v_offsets, acc, row_max, row_sum, rows,
                                          start + keys, scale_log2, True)
    tl.store(o_all + own, (acc / row_sum[:, None]).to(o_all.dtype.element_ty))


def forward(q, k, v, o, causal, config):
    """O of contiguous [batch, heads, len, head_dim] tensors of one shape; config is one of CONFIGS[head_dim].

    ValueError where the length is no multiple of its blocks.
    """
    batch, heads, length, head_dim = q.shape
    q_block, kv_tile, warps, stages = config
    if length % q_block or q_block % kv_tile:
        raise ValueError(f"q_len {length} must be a multiple of {q_block}, and that of {kv_tile}")
    _forward[(length // q_block, batch * heads)](
        q, k, v, o, length, math.log2(math.e) / math.sqrt(head_dim), HEAD_DIM=head_dim, CAUSAL=causal, Q_BLOCK=q_block,
        KV_TILE=kv_tile, num_warps=warps, num_stages=stages)


def usable_configs(q, k, v, o, causal):
    """Those of CONFIGS that fit this device, compiled and run once."""
    usable = []
    for config in CONFIGS[q.shape[3]]:
        try:
            forward(q, k, v, o, causal, config)
            usable.append(config)
        except OutOfResources:
            pass  # a device with less shared memory
    return usable


def main():
    import torch

    head_dim, mask = int(sys.argv[1]), sys.argv[2]
    # The same code as for every length: Triton's cache asks only whether a length is a multiple of 16.
    q, k, v, o = (torch.randn(1, 1, 256, head_dim, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    usable_configs(q, k, v, o, mask == "causal")
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
