"""What the rows of gpu_peers.py say: means, worst points, and whether they reach what is asked of the kernels.

As a program: peers_summary.py RESULTS.json [--markdown FILE], from a run's JSON, which may have been cut.
"""

import argparse
import dataclasses
import json

from peers_rows import HEAD_DIMS, IMPLS, LENGTHS, MASKS, geometric_mean, of_impl, ratios

CUDNN_MEAN = {64: (0.95, 1.10), 128: (0.90, 1.10), 256: (0.85, 1.05)}  # head_dim: (must, aim)
CUDNN_POINT = 0.80
FA2_POINT = {64: 1.4, 128: 1.5, 256: 1.5}
TRITON_MEAN = {(64, "full"): 1.05, (64, "causal"): 1.15, (128, "full"): 1.2, (128, "causal"): 1.2}
STANDARD_LONG = 20
ERROR = 1.05


@dataclasses.dataclass(frozen=True)
class Must:
    what: str
    limit: float
    value: float | None  # None: not all that it speaks of was measured
    at_most: bool = False
    aim: float | None = None

    @property
    def outcome(self):
        if self.value is None:
            return "not measured"
        reached = self.value <= self.limit if self.at_most else self.value >= self.limit
        # NaN reaches nothing.
        return ("PASS, aim reached" if self.aim and self.value >= self.aim else "PASS") if reached else "short"


def _at(found, dtypes=("bf16", "fp16"), masks=MASKS, head_dims=HEAD_DIMS, lengths=LENGTHS):
    """The ratios of these points, or None if one is missing."""
    points = [(d, m, h, n) for d in dtypes for m in masks for h in head_dims for n in lengths]
    return [found[p] for p in points] if points and all(p in found for p in points) else None


def _over(function, values):
    return None if values is None else function(values)


def musts(rows):
    """Every Must, in the order in which the summary prints them. Peers that only ran bf16 are compared there."""
    cudnn, fa2, triton, standard = (ratios(rows, peer) for peer in ("cudnn", "fa2", "triton", "standard"))
    error = ratios(rows, "cudnn", "rel_error")
    out = []
    for head_dim, (must, aim) in sorted(CUDNN_MEAN.items()):
        for mask in MASKS:
            for dtype in ("bf16", "fp16"):
                mean = _over(geometric_mean, _at(cudnn, (dtype,), (mask,), (head_dim,)))
                out.append(Must(f"cudnn, mean of six lengths, {dtype} D{head_dim} {mask}", must, mean, aim=aim))
    out.append(Must("cudnn, smallest point", CUDNN_POINT, _over(min, _at(cudnn))))
    long = [n for n in LENGTHS if n > 1024]
    for head_dim, must in sorted(FA2_POINT.items()):
        out.append(Must(f"fa2, smallest point above L 1024, bf16 D{head_dim}", must,
                        _over(min, _at(fa2, ("bf16",), MASKS, (head_dim,), long))))
    for (head_dim, mask), must in sorted(TRITON_MEAN.items()):
        out.append(Must(f"triton, mean of six lengths, bf16 D{head_dim} {mask}", must,
                        _over(geometric_mean, _at(triton, ("bf16",), (mask,), (head_dim,)))))
    for mask in MASKS:
        out.append(Must(f"standard, smallest at L 16384, bf16 {mask}", STANDARD_LONG,
                        _over(min, _at(standard, ("bf16",), (mask,), lengths=(16384,)))))
    worst = _at(error)
    # max() passes over a NaN that is not the first.
    out.append(Must("error over cudnn's, worst", ERROR,
                    _over(lambda v: max(v) if all(x == x for x in v) else float("nan"), worst), at_most=True))
    return out


def _number(value, digits=3):
    return "-" if value is None else f"{value:.{digits}f}"


def must_lines(rows):
    return [f"{m.outcome:17} {_number(m.value):>8}  {'<=' if m.at_most else '>='} {m.limit:<5} attnd / {m.what}"
            for m in musts(rows)]


def ratio_lines(rows):
    """attnd over each peer, by (dtype, head_dim, mask): the mean over what was measured, and the smallest point."""
    lines = []
    for peer in IMPLS[1:]:
        for grouped in (False, True):
            by_kind = {}
            for (dtype, mask, head_dim, q_len), ratio in ratios(rows, peer, grouped=grouped).items():
                by_kind.setdefault((dtype, head_dim, mask), []).append((ratio, q_len))
            for (dtype, head_dim, mask), found in sorted(by_kind.items()):
                smallest, q_len = min(found)
                mean = geometric_mean(ratio for ratio, _ in found)
                lines.append(f"attnd/{peer:9} {dtype} D{head_dim:<4} {mask:7} {'GQA ' if grouped else ''}mean {mean:6.3f}  "
                             f"smallest {smallest:6.3f} at L {q_len}  ({len(found)} lengths)")
    return lines


def variant_lines(rows):
    """The fastest forced configuration of each shape, beside the built-in choice."""
    forced = sorted({r["impl"] for r in rows if r["impl"].startswith("attnd@")})
    built_in = of_impl(rows, "attnd")
    by_impl = {impl: of_impl(rows, impl) for impl in forced}
    lines = []
    for point in sorted({p for found in by_impl.values() for p in found}):
        rates = {impl: found[point]["tflops"] for impl, found in by_impl.items() if point in found}
        best = max(rates, key=rates.get)
        every = "  ".join(f"{impl[6:]} {rate:6.1f}" for impl, rate in rates.items())
        chosen = f"  built in {built_in[point]['tflops']:6.1f}" if point in built_in else ""
        dtype, mask, head_dim, q_len = point
        lines.append(f"best {best[6:]}  {dtype} D{head_dim:<4} {mask:7} L{q_len:<6} {every}{chosen}")
    return lines


def summary_lines(results):
    """What gpu_peers.py prints last."""
    rows = results["rows"]
    lines = variant_lines(rows)
    lines += [f"gpt2  {r['impl']:9} {r['operation']:10} {r['median_us']:7.1f} us" for r in results["gpt2"]]
    lines += ratio_lines(rows)
    lines += [f"no {m['impl']} at {len(m['shapes'])} shapes, {m['shapes'][0]} first: {m['why']}" for m in results["missing"]]
    return [*lines, *must_lines(rows)]


def _table(rows, dtype, grouped):
    by_impl = {impl: of_impl(rows, impl, grouped) for impl in IMPLS}
    impls = [impl for impl in IMPLS if any(p[0] == dtype for p in by_impl[impl])]
    points = sorted({p for impl in impls for p in by_impl[impl] if p[0] == dtype}, key=lambda p: (p[2], p[1] != "full", p[3]))
    if not points:
        return []
    beside = [peer for peer in impls if peer != "attnd"]
    lines = ["| D | mask | L | " + " | ".join(impls) + " | " + " | ".join(f"over {p}" for p in beside) + " | error, attnd | cudnn |",
             "|" + "---|" * (5 + len(impls) + len(beside))]
    for point in points:
        def cell(impl, key, form):
            value = by_impl[impl].get(point, {}).get(key)
            return "-" if value is None else format(value, form)

        ours = by_impl["attnd"].get(point)
        over = [f"{ours['tflops'] / by_impl[p][point]['tflops']:.2f}" if ours and point in by_impl[p] else "-" for p in beside]
        cells = [f"{point[2]}", point[1], f"{point[3]}", *(cell(i, "tflops", ".0f") for i in impls), *over,
                 cell("attnd", "rel_error", ".2e"), cell("cudnn", "rel_error", ".2e")]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def markdown(results):
    """The page of a run: recipe, tables in TFLOP/s, GPT-2 small in us, what is asked and what came."""
    rows = results["rows"]
    lines = [", ".join(f"{key} {value}" for key, value in results["recipe"].items()) + "."]
    for dtype, grouped, title in (("bf16", False, "bf16"), ("fp16", False, "fp16"), ("bf16", True, "bf16, 64 query heads on 8")):
        table = _table(rows, dtype, grouped)
        if table:
            lines += ["", f"### {title}, TFLOP/s", "", *table]
    if results["gpt2"]:
        lines += ["", "### GPT-2 small's attention, fp16, causal", "", "| impl | operation | us |", "|---|---|---|"]
        lines += [f"| {r['impl']} | {r['operation']} | {r['median_us']:.0f} |" for r in results["gpt2"]]
    lines += ["", "### Asked and measured", "", "| attnd over | asked | measured | outcome |", "|---|---|---|---|"]
    lines += [f"| {m.what} | {'<=' if m.at_most else '>='} {m.limit} | {_number(m.value)} | {m.outcome} |" for m in musts(rows)]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", metavar="RESULTS.json")
    parser.add_argument("--markdown", metavar="FILE")
    args = parser.parse_args()
    with open(args.results) as file:
        results = json.load(file)
    if args.markdown:
        with open(args.markdown, "w") as file:
            file.write(markdown(results))
    print(*summary_lines(results), sep="\n")


if __name__ == "__main__":
    main()
