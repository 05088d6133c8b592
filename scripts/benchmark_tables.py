"""The tables of docs/benchmarks.md, made of what `sparsetune bench` recorded (`benches/results`, written by `scripts/results.py`)."""

import csv
import math
import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def mean(values):
    # Of one value that value, which exp and log would change in its last digit.
    return values[0] if len(values) == 1 else math.exp(sum(map(math.log, values)) / len(values))


def both(rows):
    """By the clock that decides, and in brackets by that of single calls. A budget may end before calls are timed so: then of how many they were."""
    pipelined, isolated = ([float(row[clock]) for row in rows if row[clock]] for clock in ("speedup", "isolated_speedup"))
    if not isolated:
        return f"{mean(pipelined):.2f}"
    timed = "" if len(isolated) == len(pipelined) else f" of {len(isolated)}"
    return f"{mean(pipelined):.2f} ({mean(isolated):.2f}{timed})"


def worst(rows):
    least = min(rows, key=lambda row: float(row["speedup"]))
    return f"{float(least['speedup']):.2f} {least['matrix']}"


def grouped(rows, key):
    found = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    return found


def table(head, rows):
    # Columns of figures, with what stands behind them.
    figures = [all(row[place][:1].isdigit() or not row[place] for row in rows) for place in range(len(head))]
    aligned = "|".join("--:" if right else "---" for right in figures)
    lines = [f"| {' | '.join(head)} |", f"|{aligned}|"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def recorded(name):
    """The rows of a recording. Where a vendor's routine wins, be it cuBLAS, nothing is gained: 1, though cuBLAS may be far ahead of cuSPARSE."""
    with open(ROOT / "benches/results" / name, newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row.get("winner", "").startswith("vendor"):
            row |= {clock: "1" for clock in ("speedup", "isolated_speedup") if row.get(clock)}
    return rows


def products_of(*recordings):
    """A row for each problem: all matrices, the worst, and each class. Of problems that several recordings have, the last one's rows are taken."""
    classes = ["stencil", "power-law", "road-mesh", "circuit", "pruned", "rectangular"]
    problems = {}
    for rows in recordings:
        problems |= grouped(rows, "problem")
    out = []
    for problem, rows in problems.items():
        of = grouped(rows, "class")
        out.append([problem, str(len(rows)), both(rows), worst(rows), *(both(of[name]) for name in classes)])
    return table(["problem", "matrices", "all", "worst", *classes], out)


def row_major():
    """What was measured last of each problem: a later build has f32 alone, and some matrices more; later ones N = 1 and 8, and 32, 128 and 256."""
    before, later, narrow, wide = (recorded(f"h100-cusparse-12.9.4-{name}.csv") for name in ("turned", "expanded", "near", "wide"))
    pair = lambda row: (row["problem"], row["matrix"])
    found = {pair(row): row for row in before if "row" in row["problem"]}
    # Of the one build between, what the suite's other runs have; of the last ones, all.
    found |= {pair(row): row for row in later if pair(row) in found and row["problem"].startswith("f32")}
    found |= {pair(row): row for row in [*narrow, *wide]}
    order = list(dict.fromkeys(row["problem"] for row in before))
    return sorted(found.values(), key=lambda row: order.index(row["problem"]))


def worst_five(rows):
    least = sorted(rows, key=lambda row: float(row["speedup"]))[:5]
    return ", ".join(f"{row['matrix']} {float(row['speedup']):.2f}" for row in least)


def worst_products():
    rows = [*row_major(), *recorded("h100-column-cusparse-12.9.4.csv")]
    return table(["problem", "the five least"], [[problem, worst_five(of)] for problem, of in grouped(rows, "problem").items()])


def preparing():
    """Milliseconds of preprocessing and calls until it is recovered, of the plans that were found."""
    named = {
        "products, 52 other matrices": "h100-others-spmm.csv", "products, the suite": "h100-trials-48-spmm.csv",
        "solves, one side": "h100-sptrsv-cusparse-12.9.4.csv", "solves, other systems": "h100-others-sptrsv.csv",
        "solves, 16 sides, eight largest": "h100-sptrsv-16-cusparse-12.9.4.csv",
    }
    out = []
    for name, file in named.items():
        for problem, of in grouped([row for row in recorded(file) if row["break_even_calls"]], "problem").items():
            calls = [int(row["break_even_calls"]) for row in of]
            most = max(of, key=lambda row: int(row["break_even_calls"]))
            spent = [float(row["preprocess_ms"]) for row in of]
            out.append([
                name, problem, str(len(of)), f"{statistics.median(spent):.1f}", f"{max(spent):,.0f}", f"{statistics.median(calls):,.0f}",
                f"{max(calls):,}" + (f" {most['matrix']}" if max(calls) else ""),
            ])
    return table(["plans", "problem", "number", "ms, median", "most", "calls until recovered, median", "most"], out)


def products():
    return products_of(row_major(), recorded("h100-column-cusparse-12.9.4.csv"))


def products_on_cpu():
    return products_of(recorded("epyc-2t-mkl-2026.2.csv"))


def unordered():
    """A row for each problem: all matrices, then each."""
    rows = recorded("h100-unordered-cusparse-12.9.4.csv")
    names = list(grouped(rows, "matrix"))
    out = [[problem, both(of), *(both(grouped(of, "matrix")[name]) for name in names)] for problem, of in grouped(rows, "problem").items()]
    return table(["problem", "all", *names], out)


def other_products():
    """A row for each problem: all matrices, the worst, and by entries."""
    rows = recorded("h100-others-spmm.csv")
    few = lambda row: int(row["nnz"]) < 10_000
    out = [
        [problem, str(len(of)), both(of), worst(of), both([row for row in of if few(row)]), both([row for row in of if not few(row)])]
        for problem, of in grouped(rows, "problem").items()
    ]
    return table(["problem", "matrices", "all", "worst", "below 10,000 nonzeros", "10,000 and more"], out)


def every_product():
    out = []
    for row in row_major():
        if row["problem"] in ("f32 row N = 32", "f32 row N = 128"):
            share, time, vendor = float(row["share_of_limit"]), float(row["us"]), float(row["vendor_us"])
            winner = row["winner"].split()[0]
            cells = [row["problem"], row["matrix"], row["class"], f"{int(row['nnz']):,}", f"{time:.1f}", f"{vendor:.1f}"]
            out.append([*cells, f"{float(row['speedup']):.2f}", f"{share:.2f}", winner])
    return table(["problem", "matrix", "class", "nonzeros", "us", "cuSPARSE us", "speed-up", "of the bound", "winner"], out)


ROWS_A_LEVEL = {"4-32": "4 to 32", "32-256": "32 to 256", "256-2000": "256 to 2000", ">= 2000": "2000 and more"}


def rows_a_level(name):
    return ROWS_A_LEVEL.get(name, name).replace("<", "&lt;")


# Unit diagonals beside entries of one, so that terms cancel and the solution grows: rewritten only where it is refined.
AMPLIFYING = ["4elt", "email-Enron", "as-caida20071105", "road_COL upper"]


def solves():
    rows, sides = recorded("h100-sptrsv-cusparse-12.9.4.csv"), recorded("h100-sptrsv-16-cusparse-12.9.4.csv")
    of_sides = grouped(sides, "class")
    out = [
        [rows_a_level(name), str(len(of)), both(of), worst(of), both(of_sides[name]), worst(of_sides[name])]
        for name, of in grouped(rows, "class").items()
    ]
    for name, amplifying in {"all that may be rewritten": [False], "all that may not unless refined": [True], "all": [False, True]}.items():
        one, several = ([row for row in found if (row["matrix"] in AMPLIFYING) in amplifying] for found in (rows, sides))
        out.append([name, str(len(one)), both(one), worst(one), both(several), worst(several)])
    return table(["rows / levels", "systems", "over the best of SpSV", "worst", "16 sides: over SpSM", "worst"], out)


def worst_solves():
    files = {
        "one side": "h100-sptrsv-cusparse-12.9.4.csv", "one side, other systems": "h100-others-sptrsv.csv", "16 sides": "h100-sptrsv-16-cusparse-12.9.4.csv",
        "one side, row by row": "h100-sptrsv-row-wise.csv",
    }
    return table(["problem", "the five least"], [[name, worst_five(recorded(file))] for name, file in files.items()])


def other_solves():
    """Real systems apart from generated ones, whose names are specifications."""
    rows = recorded("h100-others-sptrsv.csv")
    of_kind = lambda generated: [row for row in rows if (":" in row["matrix"]) == generated]
    out = []
    for name in ["< 4", *ROWS_A_LEVEL]:
        for kind in (False, True):
            of = [row for row in of_kind(kind) if row["class"] == name]
            out.append([rows_a_level(name), "generated" if kind else "real", str(len(of)), both(of), worst(of)])
    for kind in (False, True):
        out.append(["all", "generated" if kind else "real", str(len(of_kind(kind))), both(of_kind(kind)), worst(of_kind(kind))])
    return table(["rows / levels", "systems", "number", "over the best of SpSV", "worst"], out)


def row_by_row():
    rows, out = recorded("h100-sptrsv-row-wise.csv"), []
    for row in rows:
        cells = [row["matrix"], f"{int(row['levels']):,}", f"{float(row['us']):.0f}", f"{float(row['vendor_us']):.0f}"]
        out.append([*cells, f"{float(row['speedup']):.2f}", row["winner"].split()[0]])
    out.append([f"all {len(rows)}", "", "", "", f"{mean([float(row['speedup']) for row in rows]):.2f}", ""])
    return table(["system", "levels", "us", "SpSV us", "speed-up", "winner"], out)


def searches():
    out = []
    unordered = [row | {"matrix": f"{row['matrix']} (in no order)"} for row in recorded("h100-unordered-cusparse-12.9.4.csv")]
    searched = {
        "products": [*row_major(), *recorded("h100-column-cusparse-12.9.4.csv"), *unordered], "products, other matrices": recorded("h100-others-spmm.csv"),
        "solves": recorded("h100-sptrsv-cusparse-12.9.4.csv"), "solves, other systems": recorded("h100-others-sptrsv.csv"),
        "solves of 16 sides": recorded("h100-sptrsv-16-cusparse-12.9.4.csv"), "solves row by row": recorded("h100-sptrsv-row-wise.csv"),
    }
    for name, rows in searched.items():
        took = [float(row["tuning_s"]) for row in rows]
        longest = max(rows, key=lambda row: float(row["tuning_s"]))
        of = f"{longest['matrix']} ({int(longest['nnz']):,} nonzeros), {longest['problem']}"
        out.append([name, str(len(rows)), f"{statistics.median(took):.1f}", f"{max(took):.1f}", of])
    return table(["searches for", "number", "median", "longest", "which was"], out)


def h200():
    out = []
    gained = lambda row: 1.0 if row["winner"] == "vendor" else float(row["after_vendor_us"]) / float(row["after_us"])
    rows = [row | {"speedup": gained(row)} for row in recorded("h200-cusparse-12.9.4.csv")]
    # All solves together: they differ in the triangle.
    for row in rows:
        row["problem"] = "sptrsv f64" if row["problem"].startswith("sptrsv") else row["problem"]
    for problem, of in grouped(rows, "problem").items():
        out.append([problem, str(len(of)), f"{mean([row['speedup'] for row in of]):.2f}", worst(of)])
    return table(["problem", "matrices", "speed-up", "worst"], out)


TABLES = {
    "products": products, "every product": every_product, "products on a CPU": products_on_cpu, "unordered products": unordered, "other products": other_products, "worst products": worst_products,
    "solves": solves, "other solves": other_solves, "worst solves": worst_solves, "row by row": row_by_row,
    "searches": searches, "preparing": preparing, "an H200": h200,
}
