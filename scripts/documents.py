"""Writes the pages of docs/ that are made from the program, its files and its recorded measurements, or compares them.

    scripts/documents.py --program target/debug/sparsetune           names the pages that are not up to date
    scripts/documents.py --program target/debug/sparsetune --write   writes them

Needs PyYAML: target/venv/bin/python has it. tests/documents compares the pages with what this script makes.
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
# The tests load this file from elsewhere.
sys.path.insert(0, str(ROOT / "scripts"))
from benchmark_tables import TABLES  # noqa: E402
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
