"""The kernels beside their peers on one GPU, in one run. Usage: gpu_peers.py LIBRARY [--json FILE] [--markdown FILE]

README.md beside this tells what is compared, and how.
"""

import argparse
import contextlib
import datetime
import json
import os
import re
import sys
import time

import peers_rows
import peers_summary

START = time.monotonic()
# What is no longer measured once this share of the budget is spent; attnd and cudnn always are.
SHARE = {"standard": 0.55, "triton": 0.65, "error": 0.75, "fa3": 0.85, "fa2": 0.85}
# Peers whose code is being compiled are waited for so long, in shares of the budget.
COMPILE_SHARE = 0.4


class Budget:
    """Seconds since the program began; `spent_s` tells them."""

    def __init__(self, limit_s, spent_s=lambda: time.monotonic() - START):
        self.limit_s = limit_s
        self.spent_s = spent_s

    def allows(self, what=None):
        return self.spent_s() < self.limit_s * SHARE.get(what, 1.0)

    def left_s(self, share=1.0):
        return max(0.0, self.limit_s * share - self.spent_s())


class Results:
    """What was measured so far, on disk after every shape: a run that is cut leaves what it had."""

    def __init__(self, path, recipe):
        self.path = path
        self.data = {"recipe": recipe, "rows": [], "gpt2": [], "missing": []}

    def miss(self, impl, name, why):
        """Printed once for each reason, not for each shape."""
        for entry in self.data["missing"]:
            if (entry["impl"], entry["why"]) == (impl, why):
                entry["shapes"].append(name)
                return
        print(f"no {impl} at {name}: {why}", flush=True)
        self.data["missing"].append({"impl": impl, "why": why, "shapes": [name]})

    def save(self):
        if self.path is None:
            return
        with open(f"{self.path}.part", "w") as file:
            json.dump(self.data, file, indent=1)
        os.replace(f"{self.path}.part", self.path)


def measure_shape(lab, shape, impls, rounds, budget, results):
    chosen = []
    for impl in [i for i in shape.impls() if i in impls] + [i for i in lab.forced if shape.dtype == "bf16"]:
        if budget.allows(impl):
            chosen.append(impl)
        else:
            results.miss(impl, shape.name, "budget spent")
    with_error = budget.allows("error")
    if not with_error:
        results.miss("error", shape.name, "budget spent")
    rows, missing = lab.measure(shape, chosen, rounds, with_error)
    for impl, why in missing.items():
        results.miss(impl, shape.name, why)
    results.data["rows"] += rows
    print(f"{budget.spent_s():5.1f} s  {shape.name:28}", "  ".join(f"{r['impl']} {r['tflops']:.0f}" for r in rows), flush=True)
    results.save()


def measure(lab, shapes, impls, rounds, budget, results, gpt2=True):
    """Shapes in their order, GPT-2 small after bf16's; what the budget leaves out is in results.data["missing"]."""
    order = [s for s in shapes if s.dtype == "bf16" and not s.grouped]
    after = [s for s in shapes if s not in order]
    for shape in [*order, "gpt2", *after]:
        name = shape if shape == "gpt2" else shape.name
        if shape == "gpt2" and not gpt2:
            continue
        if not budget.allows():
            results.miss("all", name, "budget spent")
        elif shape == "gpt2":
            results.data["gpt2"] = lab.gpt2(rounds)
            results.save()
        else:
            measure_shape(lab, shape, impls, rounds, budget, results)


def chosen_shapes(only):
    """(shapes, whether GPT-2): those in whose name the regular expression is found."""
    shapes = [s for s in peers_rows.all_shapes() if re.search(only, s.name)]
    return shapes, bool(re.search(only, "gpt2"))


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", metavar="LIBRARY", help="libattnd_kernels_c.so")
    parser.add_argument("--backend", default="cuda_sm90a")
    parser.add_argument("--json", metavar="FILE", help="written anew after every shape")
    parser.add_argument("--markdown", metavar="FILE", help="tables")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget_s", type=float, default=75, help="what matters least is left out beyond it")
    parser.add_argument("--only", default="", metavar="REGEX", help="searched in names such as bf16_d128_causal_h16x16_L2048, gpt2")
    parser.add_argument("--impls", default=",".join(peers_rows.IMPLS), help="names, separated by commas")
    parser.add_argument("--variants", action="store_true", help="force each configuration of the kernels in turn, on bf16")
    parser.add_argument("--list", action="store_true", help="print the names and measure nothing")
    args = parser.parse_args(arguments)
    args.impls = args.impls.split(",")
    if unknown := set(args.impls) - set(peers_rows.IMPLS):
        parser.error(f"--impls: {', '.join(sorted(unknown))}: not among {', '.join(peers_rows.IMPLS)}")
    if args.rounds < 1:
        parser.error(f"--rounds is {args.rounds}, must be at least 1")
    args.shapes, args.gpt2 = chosen_shapes(args.only)
    if not args.shapes and not args.gpt2:
        parser.error(f"--only: nothing has {args.only} in its name")
    return args


def main():
    args = parse(sys.argv[1:])
    if args.list:
        print(*[s.name for s in args.shapes], *(["gpt2"] if args.gpt2 else []), sep="\n")
        return
    budget = Budget(args.budget_s)
    results = Results(args.json, {})
    results.save()  # a file that cannot be written is an error before time is spent
    import peers_impls  # needs torch
    import peers_lab

    compilers = peers_impls.TritonCompilers(args.shapes if "triton" in args.impls else [])
    try:
        lab = peers_lab.Lab(args.kernels, args.backend, (0, 1, 2) if args.variants else ())
        for shape in args.shapes:  # while the compilers run; nothing is timed
            if compilers.done():
                break
            with contextlib.suppress(RuntimeError):  # said when it is measured
                lab.warm(shape)
        compilers.wait(budget.left_s(COMPILE_SHARE))
    finally:
        compilers.wait(0)
    results.data["recipe"] = {**lab.recipe(), "date": datetime.date.today().isoformat(), "rounds": args.rounds}
    try:
        measure(lab, args.shapes, args.impls, args.rounds, budget, results, args.gpt2)
    finally:  # a GPU that failed leaves what was measured before
        print(*peers_summary.summary_lines(results.data), sep="\n", flush=True)
        if args.markdown:
            with open(args.markdown, "w") as file:
                file.write(peers_summary.markdown(results.data))


if __name__ == "__main__":
    main()
