"""What gpu_peers.py measures, and the rows that it writes: no torch here."""

import dataclasses
import math

TOKENS = 16384
HIDDEN = 2048  # heads x head_dim
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
HEAD_DIMS = (128, 64, 256)
MASKS = ("full", "causal")
IMPLS = ("attnd", "cudnn", "fa2", "fa3", "triton", "standard")
ROW_KEYS = ("impl", "pass", "dtype", "mask", "batch", "q_heads", "kv_heads", "q_len", "kv_len", "head_dim", "tflops",
            "gb_per_s", "rel_error")

# Scores of attention as separate operations, bf16, 4 GiB: four such tensors live at once. A call with more heads would run at
# the same rate, as the operations are bound by memory.
STANDARD_SCORES = 1 << 31
# Scores of the fp64 reference: one head at the greatest length, 2 GiB.
REFERENCE_SCORES = 1 << 28
REFERENCE_HEADS = 16


@dataclasses.dataclass(frozen=True)
class Shape:
    """q_len keys as well: attention of a sequence on itself."""

    dtype: str  # "bf16", "fp16"
    mask: str  # one of MASKS
    batch: int
    q_heads: int
    kv_heads: int
    q_len: int
    head_dim: int

    @property
    def name(self):
        return f"{self.dtype}_d{self.head_dim}_{self.mask}_h{self.q_heads}x{self.kv_heads}_L{self.q_len}"

    @property
    def causal(self):
        return self.mask == "causal"

    @property
    def grouped(self):
        return self.q_heads != self.kv_heads

    def flops(self):
        """Two products of 2 operations; causal sees half of the pairs."""
        return 4 * self.batch * self.q_heads * self.q_len**2 * self.head_dim / (2 if self.causal else 1)

    def bytes(self):
        """Q, K, V and O once."""
        return 2 * self.batch * (2 * self.q_heads + 2 * self.kv_heads) * self.q_len * self.head_dim

    def impls(self):
        """Who is measured on it: Triton's kernel and separate operations cost the most time, and bf16 tells enough of them."""
        return IMPLS if self.dtype == "bf16" and not self.grouped else IMPLS[:4]

    def standard_part(self):
        """The part of the batch, then of the heads, whose scores fit STANDARD_SCORES."""
        heads = max(1, STANDARD_SCORES // self.q_len**2)
        batch = min(self.batch, max(1, heads // self.q_heads))
        q_heads = min(self.q_heads, heads)
        return dataclasses.replace(self, batch=batch, q_heads=q_heads, kv_heads=q_heads)

    def reference_heads(self):
        """Places in [batch x q_heads] that are compared with fp64, spread evenly, first and last among them."""
        total = self.batch * self.q_heads
        count = max(1, min(total, REFERENCE_HEADS, REFERENCE_SCORES // self.q_len**2))
        return [round(i * (total - 1) / max(1, count - 1)) for i in range(count)]


def square_shapes(dtype):
    return [Shape(dtype, mask, TOKENS // length, HIDDEN // head_dim, HIDDEN // head_dim, length, head_dim)
            for head_dim in HEAD_DIMS for mask in MASKS for length in LENGTHS]


def all_shapes():
    """In order of importance."""
    grouped = [Shape("bf16", "causal", max(1, TOKENS // length), 64, 8, length, 128) for length in (2048, 8192, 32768)]
    return square_shapes("bf16") + square_shapes("fp16") + grouped


def row(impl, shape, median_us, rel_error):
    """Keys are ROW_KEYS; rel_error is None where it was not computed."""
    return {
        "impl": impl, "pass": "fwd", "dtype": shape.dtype, "mask": shape.mask, "batch": shape.batch,
        "q_heads": shape.q_heads, "kv_heads": shape.kv_heads, "q_len": shape.q_len, "kv_len": shape.q_len,
        "head_dim": shape.head_dim, "tflops": shape.flops() / median_us / 1e6,
        "gb_per_s": shape.bytes() / median_us / 1e3, "rel_error": rel_error,
    }


def launches(estimate_us, at_least_us=3000, at_most=40):
    """Launches of a round: long enough to time, few enough to be queued at once."""
    return max(1, min(at_most, math.ceil(at_least_us / estimate_us)))


def of_impl(rows, impl, grouped=False):
    """{(dtype, mask, head_dim, q_len): row}. Parts of the batch do not count: rates are compared, not times."""
    return {(r["dtype"], r["mask"], r["head_dim"], r["q_len"]): r
            for r in rows if r["impl"] == impl and (r["q_heads"] != r["kv_heads"]) == grouped}


def ratios(rows, peer, key="tflops", impl="attnd", grouped=False):
    """{point: impl's / peer's} where both were measured."""
    ours, theirs = of_impl(rows, impl, grouped), of_impl(rows, peer, grouped)
    return {point: ours[point][key] / theirs[point][key]
            for point in ours if point in theirs and None not in (ours[point][key], theirs[point][key])}


def geometric_mean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values))
