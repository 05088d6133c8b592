"""Writes the pages of docs/ that are made from the program, its files and its recorded measurements, or compares them.

    scripts/documents.py --program target/debug/sparsetune           names the pages that are not up to date
    scripts/documents.py --program target/debug/sparsetune --write   writes them

Needs PyYAML: target/venv/bin/python has it. tests/documents compares the pages with what this script makes.
"""

import argparse
import csv
import math
import os
import re
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
NOTE = "<!-- Written by scripts/documents.py: change {}, and run it with --write. -->"


def page(title, made_from, words, body):
    return f"# {title}\n\n{NOTE.format(made_from)}\n\n{words}\n\n{body.rstrip()}\n"


# The command line


def told(program, *words):
    # Nothing of this machine may show: neither settings of the environment nor the width of a terminal.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARSETUNE_")}
    done = subprocess.run([program, *words], env={**environment, "COLUMNS": "100"}, capture_output=True, text=True, check=True)
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()).strip()


def below(text):
    """The subcommands that a help text lists, each with its line: those of the program in groups, before its options."""
    before = re.split(r"^(?:Options|Arguments|Examples):$", text, maxsplit=1, flags=re.MULTILINE)[0]
    listed = re.findall(r"^  ([a-z][a-z-]*)\s{2,}(\S.*)$", before, re.MULTILINE)
    return [(name, line) for name, line in listed if name != "help"]


def commands(program, words=()):
    """Every subcommand, in the order of the program, with its one line and its help text."""
    for name, line in below(told(program, *words, "-h")):
        inner = (*words, name)
        text = told(program, *inner, "-h")
        yield " ".join(inner), line, text
        yield from commands(program, inner)


# Flags that several commands share, under the headings of the help, and what they are of.
SHARED = {"Problem": "a problem", "Search": "a search", "Server": "a server"}
# Every command has these.
COMMON = re.compile(r"^ +-[vh], --(verbose|help) .*\n?", re.MULTILINE)


def apart(text):
    """A help text without the flags that commands share and those that all have, and the former by their heading."""
    shared = {}
    parts = re.split(r"^(?=\S[^\n]*:$)", text + "\n", flags=re.MULTILINE)
    kept = []
    for part in parts:
        heading = part.split(":\n", 1)[0]
        if heading in SHARED:
            shared[heading] = part.split(":\n", 1)[1].strip("\n")
        elif heading == "Options":
            part = COMMON.sub("", part)
            kept += [part] if part.strip() != "Options:" else []
        else:
            kept.append(part)
    return "".join(kept).strip(), shared


def listed(names):
    """`a, b and c`"""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def command_line(program):
    anchor = lambda name: name.replace(" ", "-")  # noqa: E731
    rows, texts, groups = [], [], {}
    for name, line, text in commands(program):
        # A pipe in a sentence would end the cell.
        rows.append(f"| [`{name}`](#{anchor(name)}) | {line.replace('|', chr(92) + '|')} |")
        own, shared = apart(text)
        for heading, flags in shared.items():
            if groups.setdefault(heading, flags) != flags:
                # bench has no default server: the heading is its own there.
                own += f"\n\n{heading}:\n{flags}"
        also = [f"[{SHARED[heading]}](#flags-of-{anchor(SHARED[heading])})" for heading in shared if groups[heading] == shared[heading]]
        texts.append(f"## {name}\n\n```text\n{own}\n```" + (f"\n\nAlso the flags of {listed(also)}." if also else ""))
    common = "\n".join(f"## Flags of {SHARED[heading]}\n\n```text\n{flags}\n```\n" for heading, flags in groups.items())
    words = (
        "What `sparsetune COMMAND -h` says of every command; flags that several have are told once, [at the end](#flags-of-a-problem). Every command also has\n"
        "`-h` (`--help`) and `-v` (`--verbose`, more details on standard error). Settings may be given in the environment ([Settings](settings.md)).\n"
        "[Exit codes](exit-codes.md) are the same for all."
    )
    index = "\n".join(rows)
    return page("Command line", "the commands in src/cli", words, f"| command | |\n|---|---|\n{index}\n\n" + "\n\n".join(texts) + f"\n\n{common}")


# Settings


def settings(text):
    """Sections of config/default.toml: comments become paragraphs, keys rows of a list with their default."""
    values, out, remark, section = tomllib.loads(text), [], [], None
    head = True

    def flush():
        said = " ".join(remark).replace("<", "&lt;").replace("*", r"\*")
        remark.clear()
        return said

    for line in text.splitlines():
        if line.startswith("#"):
            remark.append(line.lstrip("# ").rstrip())
        elif not line.strip():
            # What stands before an empty line is of the file, or of the section that comes.
            if head:
                remark.clear()
                head = False
        elif found := re.fullmatch(r"\[([\w.]+)\]", line.strip()):
            section = found[1]
            before = flush()
            out.append(f"\n## {section}\n" + (f"\n{before}\n" if before else ""))
        elif found := re.match(r"(\w+) = (.*)", line):
            at = values
            for part in section.split("."):
                at = at[part]
            assert found[1] in at, found[1]
            said = flush()
            out.append(f"- `{section}.{found[1]}` = `{found[2]}`" + (f"  \n  {said}" if said else ""))
        else:
            raise SystemExit(f"config/default.toml: `{line}` is not understood")
    return "\n".join(out).strip()


def settings_page():
    text = (ROOT / "config/default.toml").read_text()
    words = (
        "Every key with its default, from `config/default.toml`, which is embedded in the binary. Later sources take precedence: that\n"
        "file < the file named by `--config` or `SPARSETUNE_CONFIG` < environment < flags. In the environment `server.listen` is\n"
        "`SPARSETUNE_SERVER__LISTEN`, and values are written as here: `SPARSETUNE_DEVICES__USE='[\"cpu\"]'`. Unknown keys and invalid values are\n"
        'refused at start, all of them together. An empty string means "automatic". A key without words shares those of the one before it.'
    )
    return page("Settings", "config/default.toml", words, settings(text))


# The API


def scopes(operation, default):
    wanted = operation.get("security", default)
    named = [scope for entry in wanted for scope in entry.get("token", [])]
    return ", ".join(f"`{scope}`" for scope in named) or "none"


def api_page(openapi):
    tables = []
    for tag in (tag["name"] for tag in openapi["tags"]):
        rows = []
        for path, item in openapi["paths"].items():
            for method, operation in item.items():
                if method in ("get", "put", "post", "delete") and tag in operation.get("tags", []):
                    answers = ", ".join(sorted(code for code in operation["responses"] if code.isdigit() and code < "400"))
                    scope = scopes(operation, openapi["security"])
                    rows.append(f"| `{method.upper()} {path}` | {operation['summary']} | {scope} | {answers} |")
        tables.append(f"## {tag}\n\n| request | | scope | success |\n|---|---|---|---|\n" + "\n".join(rows))
    words = (
        "All requests, from `openapi.yaml`, which is the contract: a server has it at `/openapi.yaml`, and pages to try it at `/docs`. The\n"
        "scope is what a [token](../guides/service.md#tokens) must permit, where the server requires tokens. [The HTTP API, by hand](../guides/http.md) has examples."
    )
    general = openapi["info"]["description"].strip()
    return page("API", "openapi.yaml", words, "\n\n".join(tables) + f"\n\n## What holds for all\n\n{general}")


# The fields of a plan


def schema_of(openapi, schema):
    """The schema behind references, with a description of the place itself, if it has one."""
    merged = {}
    for part in schema.get("allOf", []):
        merged |= schema_of(openapi, part)
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        merged |= schema_of(openapi, openapi["components"]["schemas"][name]) | {"name": name}
    return merged | {key: value for key, value in schema.items() if key not in ("allOf", "$ref")}


def kind(openapi, schema):
    if "oneOf" in schema:
        return " or ".join(kind(openapi, schema_of(openapi, part)) for part in schema["oneOf"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    of = schema.get("type", "")
    of = " or ".join(of) if isinstance(of, list) else of
    if of == "array":
        inner = kind(openapi, schema_of(openapi, schema.get("items", {})))
        return f"array of {inner}" if inner else "array"
    return f"{schema['name']}" if "name" in schema and of in ("object", "") else of


def in_one_line(text):
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;")


def fields(openapi, schema, path="", told=None):
    """Rows of a schema's fields. What is within a schema with a name is told where that first comes."""
    told = {} if told is None else told
    for name, given in schema.get("properties", {}).items():
        whole = schema_of(openapi, given)
        need = "" if name in schema.get("required", []) else "may be absent"
        here = f"{path}{name}"
        inner = schema_of(openapi, whole.get("items", {})) if whole.get("type") == "array" else whole
        first = told.setdefault(inner["name"], here) if "name" in inner and "properties" in inner else here
        meaning = in_one_line(whole.get("description", "")) if first == here else f"Fields as `{first}` has them."
        yield f"| `{here}` | {kind(openapi, whole)} | {need} | {meaning} |"
        if "properties" in inner and first == here:
            yield from fields(openapi, inner, here + ("[]." if inner is not whole else "."), told)


def plan_page(openapi):
    rows = "\n".join(fields(openapi, schema_of(openapi, {"$ref": "#/components/schemas/Plan"})))
    words = (
        "A plan as `GET /v1/plans/{id}` answers it, from `openapi.yaml`. A name with dots is of an object within; `[]` stands for each\n"
        "element of an array. [The performance bound](../explanation/bound.md) explains `limit`, [Grades](../explanation/grades.md) what a lookup\n"
        "says beside the plan, and the [glossary](../glossary.md) the words."
    )
    return page("Fields of a plan", "openapi.yaml", words, f"| field | type | | meaning |\n|---|---|---|---|\n{rows}")


# Tables of benchmarks


def mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def both(rows):
    """By the clock that decides, and in brackets by that of single calls, of those that were timed by it: a budget may end before."""
    pipelined, isolated = ([float(row[clock]) for row in rows if row[clock]] for clock in ("speedup", "isolated_speedup"))
    return f"{mean(pipelined):.2f}" + (f" ({mean(isolated):.2f})" if isolated else "")


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


# Unit diagonals beside entries of one: what such a system is rewritten to cancels, and its solution grows.
NOT_REWRITTEN = ["4elt", "email-Enron", "as-caida20071105", "road_COL upper"]


def solves():
    rows, sides = recorded("h100-sptrsv-cusparse-12.9.4.csv"), recorded("h100-sptrsv-16-cusparse-12.9.4.csv")
    of_sides = grouped(sides, "class")
    out = [
        [rows_a_level(name), str(len(of)), both(of), worst(of), both(of_sides[name]), worst(of_sides[name])]
        for name, of in grouped(rows, "class").items()
    ]
    part = lambda rows, of: [row for row in rows if (row["matrix"] in NOT_REWRITTEN) == of]
    for name, of in {"all that may be rewritten": [False], "all that may not, or refined": [True], "all": [False, True]}.items():
        one, several = ([row for those in of for row in part(found, those)] for found in (rows, sides))
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
    out = []
    for row in recorded("h100-sptrsv-row-wise.csv"):
        cells = [row["matrix"], f"{int(row['levels']):,}", f"{float(row['us']):.0f}", f"{float(row['vendor_us']):.0f}"]
        out.append([*cells, f"{float(row['speedup']):.2f}", row["winner"].split()[0]])
    rows = recorded("h100-sptrsv-row-wise.csv")
    out.append([f"all {len(rows)}", "", "", "", f"{mean([float(row['speedup']) for row in rows]):.2f}", ""])
    return table(["system", "levels", "us", "SpSV us", "speed-up", "winner"], out)


def searches():
    out = []
    unordered = [row | {"matrix": f"{row['matrix']} (in no order)"} for row in recorded("h100-unordered-cusparse-12.9.4.csv")]
    products = [*row_major(), *recorded("h100-column-cusparse-12.9.4.csv"), *recorded("h100-others-spmm.csv"), *unordered]
    solves = [*recorded("h100-sptrsv-cusparse-12.9.4.csv"), *recorded("h100-others-sptrsv.csv")]
    sides, by_row = recorded("h100-sptrsv-16-cusparse-12.9.4.csv"), recorded("h100-sptrsv-row-wise.csv")
    for name, rows in {"products": products, "solves": solves, "solves of 16 sides": sides, "solves row by row": by_row}.items():
        took = [float(row["tuning_s"]) for row in rows]
        longest = max(rows, key=lambda row: float(row["tuning_s"]))
        of = f"{longest['matrix']} ({int(longest['nnz']):,} nonzeros), {longest['problem']}"
        out.append([name, str(len(rows)), f"{statistics.median(took):.1f}", f"{max(took):.1f}", of])
    return table(["searches for", "number", "median", "longest", "which was"], out)


def h200():
    out = []
    rows = [row | {"speedup": float(row["after_vendor_us"]) / float(row["after_us"])} for row in recorded("h200-cusparse-12.9.4.csv")]
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


def between(page, text, begin, end, made):
    """The page's text with something else between two markers."""
    for marker in (begin, end):
        if marker not in text:
            raise SystemExit(f"{page} has no `{marker}`")
    before, rest = text.split(begin, 1)
    return f"{before}{begin}\n\n{made}\n\n{end}{rest.split(end, 1)[1]}"


def with_tables(text):
    """The page with what stands between its markers made anew."""
    for name, made in TABLES.items():
        text = between("docs/benchmarks.md", text, f"<!-- table: {name} -->", "<!-- end of table -->", made())
    return text


def suite_page():
    suite = (ROOT / "src/cli/bench/suite.toml").read_text().strip()
    page = "docs/reference/suite.md"
    return between(page, (ROOT / page).read_text(), "<!-- suite -->", "<!-- end of suite -->", f"```toml suite\n{suite}\n```")


def pages(program):
    """All pages that are made, by path."""
    openapi = yaml.safe_load((ROOT / "openapi.yaml").read_text())
    return {
        "docs/reference/cli.md": command_line(program),
        "docs/reference/settings.md": settings_page(),
        "docs/reference/api.md": api_page(openapi),
        "docs/reference/plan.md": plan_page(openapi),
        "docs/reference/suite.md": suite_page(),
        "docs/benchmarks.md": with_tables((ROOT / "docs/benchmarks.md").read_text()),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "target/debug/sparsetune"), help="the built program")
    parser.add_argument("--write", action="store_true", help="write the pages instead of comparing them")
    options = parser.parse_args()
    stale = 0
    for name, text in pages(options.program).items():
        path = ROOT / name
        if path.is_file() and path.read_text() == text:
            continue
        stale += 1
        print(f"{name} is {'written' if options.write else 'not up to date'}")
        if options.write:
            path.write_text(text)
    return 1 if stale and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
