#!/usr/bin/env python3
"""Turns what `sparsetune bench --out` wrote about products, or about solves, into the table that the documents are made from.

    scripts/results.py RUN.json [RUN.json ...] > benches/results/NAME.csv

A row for each problem and matrix that came to a plan; of several files the later ones replace rows of the earlier. Standard library only.
"""

import csv
import json
import sys

TIMES = "us vendor_us speedup isolated_us vendor_isolated_us isolated_speedup vendor winner share_of_limit"
COLUMNS = {
    "spmm": f"problem matrix class rows cols nnz {TIMES} preprocess_ms break_even_calls tuning_s".split(),
    "sptrsv": f"problem matrix class rows nnz levels {TIMES} preprocess_ms break_even_calls tuning_s".split(),
}


def problem_of(task):
    """`spmm f32 n=128 row` as the tables say it."""
    op, *rest = task.split()
    if op == "sptrsv":
        return task
    dtype, n, layout, *rest = rest
    name = {"row": "row", "col": "column"}[layout]
    return " ".join([dtype, name, "N", "=", n.removeprefix("n="), *rest])


def row_of(run):
    figures = run["figures"]
    pipelined, isolated = (figures["clocks"].get(clock, {}) for clock in ("pipelined", "isolated"))
    rounded = lambda value, digits: "" if value is None else f"{value:.{digits}f}".rstrip("0").rstrip(".")
    return {
        "problem": problem_of(run["task"]), "matrix": run["matrix"], "class": run["class"],
        **{name: run[name] for name in ("rows", "cols", "nnz", "levels")}, "preprocess_ms": rounded(figures["preprocess_ms"], 1),
        # Calls after which our preprocessing is recovered, the baseline's counted against it; none where the baseline wins.
        "break_even_calls": "" if figures["break_even_calls"] is None else figures["break_even_calls"],
        "us": rounded(pipelined.get("us"), 3), "vendor_us": rounded(pipelined.get("vendor_us"), 3),
        "speedup": rounded(pipelined.get("speedup"), 3), "isolated_us": rounded(isolated.get("us"), 3),
        "vendor_isolated_us": rounded(isolated.get("vendor_us"), 3), "isolated_speedup": rounded(isolated.get("speedup"), 3),
        "vendor": figures["vendor"], "winner": figures["winner"], "share_of_limit": rounded(figures["limit_fraction"], 3),
        "tuning_s": rounded(figures["tuning_s"], 2),
    }


def main():
    rows, ops = {}, set()
    for path in sys.argv[1:]:
        with open(path) as file:
            for run in json.load(file)["runs"]:
                if run.get("figures"):
                    ops.add(run["problem"]["op"])
                    row = row_of(run)
                    rows[row["problem"], row["matrix"]] = row
    if len(ops) != 1:
        sys.exit(f"products and solves have tables of their own; found {', '.join(sorted(ops)) or 'no plan'}")
    out = csv.DictWriter(sys.stdout, COLUMNS[ops.pop()], lineterminator="\n", extrasaction="ignore")
    out.writeheader()
    out.writerows(rows.values())


if __name__ == "__main__":
    main()
