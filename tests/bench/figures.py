"""Draws what gpu_peers.py measured. Usage: figures.py RESULTS.json OUT_DIR

Writes tflops_over_length.svg and gpt2_attention.svg there.
"""

import argparse
import json
import pathlib

from peers_rows import LENGTHS, MASKS, of_impl
from svg import Picture, ticks

# In the order of the legend: name, colour, width. An impl without rows is not in the picture.
SERIES = {
    "attnd": ("attnd", "#d62728", 2.6),
    "cudnn": ("cuDNN (PyTorch)", "#1f77b4", 1.6),
    "fa3": ("FlashAttention-3", "#17becf", 1.6),
    "fa2": ("FlashAttention-2 (PyTorch)", "#2ca02c", 1.6),
    "triton": ("plain Triton kernel", "#9467bd", 1.6),
    "standard": ("separate operations", "#7f7f7f", 1.6),
}
OPERATIONS = {  # GPT-2's steps: name, colour
    "qk": ("QKᵀ", "#4c78a8"),
    "mask": ("scale, mask", "#f58518"),
    "softmax": ("softmax", "#54a24b"),
    "dropout": ("dropout", "#b279a2"),
    "pv": ("PV", "#9d755d"),
}
PANEL_WIDTH, PANEL_HEIGHT = 300, 220
LEFT, TOP, GAP = 60, 84, 52


def legend(picture, entries, y):
    x = LEFT
    for name, colour in entries:
        picture.box(x, y - 9, 14, 10, colour)
        picture.text(x + 19, y, name, anchor="start")
        x += 40 + 6.4 * len(name)


def panel(picture, left, top, title, curves, highest):
    """curves: {impl: {q_len: tflops}}."""
    marks = ticks(highest)
    bottom = top + PANEL_HEIGHT

    def place(q_len, tflops):
        return (left + PANEL_WIDTH * (LENGTHS.index(q_len) + 0.5) / len(LENGTHS), bottom - PANEL_HEIGHT * tflops / marks[-1])

    for mark in marks:
        y = place(LENGTHS[0], mark)[1]
        picture.line(left, y, left + PANEL_WIDTH, y)
        picture.text(left - 6, y + 4, f"{mark:g}", anchor="end", size=11)
    for q_len in LENGTHS:
        picture.text(place(q_len, 0)[0], bottom + 16, f"{q_len // 1024}k" if q_len >= 1024 else f"{q_len}", size=11)
    picture.text(left + PANEL_WIDTH / 2, top - 8, title, bold=True)
    for impl in reversed(SERIES):  # attnd last, on top
        points = [place(n, curves[impl][n]) for n in LENGTHS if n in curves.get(impl, {})]
        if points:
            picture.curve(points, SERIES[impl][1], SERIES[impl][2], impl)


def tflops_over_length(results, path):
    """A panel for each head_dim and mask, bf16, one scale for all."""
    curves = {}
    for impl in SERIES:
        for (dtype, mask, head_dim, q_len), row in of_impl(results["rows"], impl).items():
            if dtype == "bf16" and q_len in LENGTHS:
                curves.setdefault((mask, head_dim), {}).setdefault(impl, {})[q_len] = row["tflops"]
    if not curves:
        raise ValueError("no row of bf16: nothing to draw")
    head_dims = sorted({head_dim for _, head_dim in curves})
    masks = [mask for mask in MASKS if any(m == mask for m, _ in curves)]
    highest = max(v for by_impl in curves.values() for found in by_impl.values() for v in found.values())
    width = LEFT + len(head_dims) * (PANEL_WIDTH + GAP)
    picture = Picture(width, TOP + len(masks) * (PANEL_HEIGHT + GAP), "TFLOP/s over sequence length")
    recipe = results["recipe"]
    picture.text(LEFT, 24, f"Forward attention on {recipe['device']}, bf16: TFLOP/s over sequence length", anchor="start", size=15,
                 bold=True)
    picture.text(width - GAP, 24, f"16384 tokens a call, heads × head_dim = 2048, {recipe['date']}", anchor="end", size=11, colour="#666")
    drawn = [impl for impl in SERIES if any(impl in by_impl for by_impl in curves.values())]
    legend(picture, [SERIES[impl][:2] for impl in drawn], 48)
    for y, mask in enumerate(masks):
        for x, head_dim in enumerate(head_dims):
            panel(picture, LEFT + x * (PANEL_WIDTH + GAP), TOP + y * (PANEL_HEIGHT + GAP), f"head_dim {head_dim}, {mask}",
                  curves.get((mask, head_dim), {}), highest)
    picture.save(path)


def gpt2_attention(results, path):
    """One bar for each implementation; that of the separate operations in its parts."""
    bars = {}
    for row in results["gpt2"]:
        bars.setdefault(row["impl"], {})[row["operation"]] = row["median_us"]
    if not bars:
        raise ValueError("gpt2 has no row: nothing to draw")
    width, left, right, height = 960, 190, 80, 30
    picture = Picture(width, 100 + len(bars) * (height + 14), "GPT-2 small's attention")
    what = "batch 8, 12 heads, length 1024, head_dim 64, fp16, causal"
    picture.text(20, 24, f"GPT-2 small's attention on {results['recipe']['device']}: {what}", anchor="start", size=15, bold=True)
    legend(picture, OPERATIONS.values(), 52)
    longest = max(sum(parts.values()) for parts in bars.values())
    order = ["standard", *(impl for impl in reversed(SERIES) if impl != "standard")]
    for number, impl in enumerate(i for i in order if i in bars):
        x, y = left, 72 + number * (height + 14)
        name, colour, _ = SERIES[impl]
        picture.text(left - 8, y + height / 2 + 4, name, anchor="end", bold=impl == "attnd")
        for operation, us in bars[impl].items():
            size = (width - left - right) * us / longest
            picture.box(x, y, size, height, OPERATIONS.get(operation, (None, colour))[1])
            if len(bars[impl]) > 1 and size > 26:
                picture.text(x + size / 2, y + height / 2 + 4, f"{us:.0f}", colour="white")
            x += size
        picture.text(x + 6, y + height / 2 + 4, f"{sum(bars[impl].values()):.0f} µs", anchor="start", bold=True)
    picture.text(left, 92 + len(bars) * (height + 14), "Fused kernels without dropout; medians.", anchor="start", size=11, colour="#666")
    picture.save(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, metavar="RESULTS.json")
    parser.add_argument("out", type=pathlib.Path, metavar="OUT_DIR")
    args = parser.parse_args()
    results = json.loads(args.results.read_text())
    args.out.mkdir(parents=True, exist_ok=True)
    tflops_over_length(results, args.out / "tflops_over_length.svg")
    gpt2_attention(results, args.out / "gpt2_attention.svg")


if __name__ == "__main__":
    main()
