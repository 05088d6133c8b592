"""The documents hang together: links and anchors, the book's table of contents, paths that are named, pages that are made."""

import importlib.util
import re
import subprocess
import tomllib
from pathlib import PurePosixPath

import pages
import pytest
import yaml

README_WORDS = 800


def resolved(page, link):
    """The path that a link on a page leads to, from the root of the repository; None if out of it."""
    parts = []
    for part in (PurePosixPath(page).parent / link).parts:
        if part == "..":
            if not parts:
                return None
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def faults(page, text=None):
    for link in pages.links(page, text):
        path, _, anchor = link.partition("#")
        target = resolved(page, path) if path else page
        if target is None or not (pages.ROOT / target).exists():
            yield f"{page}: {link} leads nowhere"
        elif anchor and anchor not in (pages.anchors(target, text if target == page else None)):
            yield f"{page}: {link}: no such heading"
        elif page.startswith("docs/") and not target.startswith("docs/"):
            yield f"{page}: {link} leads out of the book: name the file instead"


@pytest.mark.parametrize("page", pages.LINKED)
def test_links_lead_somewhere(page):
    assert not list(faults(page))


def test_a_broken_link_would_be_found():
    text = "# A page\n[a](#a-page) [b](#no) [c](none.md) [d](../README.md) `[e](none.md)` [f](https://x.y/z)\n```sh\n[g](h)\n```\n"
    assert [fault.split(": ")[1].split()[0] for fault in faults("docs/README.md", text)] == ["#no", "none.md", "../README.md"]
    assert pages.anchors("p.md", "# A `b`, c\n## A b c\n```sh\n# d\n```\n") == ["a-b-c", "a-b-c-1"]


def included(page):
    """A page that another includes as a whole is read as that one; its links must be right there, too."""
    return re.fullmatch(r"\{\{#include (\S+)\}\}\n", pages.text_of(page))


def test_pages_that_are_included_have_no_links_of_their_own():
    found = [(page, include[1]) for page in pages.BOOK if (include := included(page))]
    assert found
    for page, path in found:
        source = resolved(page, path)
        assert source in pages.RUN and not pages.links(source), f"{source} is part of {page}"


def test_the_summary_names_every_page_once():
    listed = re.findall(r"^(?:- )?\[[^\]]+\]\(([^)]+)\)$", pages.text_of("docs/SUMMARY.md"), re.MULTILINE)
    there = [page.removeprefix("docs/") for page in pages.BOOK if page != "docs/SUMMARY.md"]
    assert sorted(listed) == sorted(there)
    book = tomllib.loads((pages.ROOT / "docs/book.toml").read_text())
    assert book["book"]["src"] == "."


def test_pages_begin_with_their_title():
    for page in set(pages.BOOK) - {"docs/SUMMARY.md"}:
        assert included(page) or pages.text_of(page).startswith("# "), page


def test_paths_that_the_book_names_exist():
    folders = "src|tests|kernels|benches|scripts|config|docker|kubernetes|packaging|crates|migrations|python"
    strange = []
    for page in ["README.md", *pages.BOOK]:
        for path in re.findall(rf"`((?:{folders})/[\w./-]*)`", pages.text_of(page)):
            if not (pages.ROOT / path).exists():
                strange.append(f"{page}: {path}")
    assert not strange, strange


def test_the_readme_is_short():
    assert len(pages.text_of("README.md").split()) < README_WORDS


def test_the_readme_has_one_picture_and_three_lines_of_python():
    [python] = [block for block in pages.blocks("README.md") if block.language == "python"]
    assert len(python.text.splitlines()) == 3
    assert len([link for link in pages.links("README.md") if link.endswith(".png")]) == 1


def test_one_version_is_told_everywhere():
    cargo = tomllib.loads((pages.ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    openapi = yaml.safe_load((pages.ROOT / "openapi.yaml").read_text())["info"]["version"]
    assert cargo == openapi
    changes = re.findall(r"^## (.*)$", pages.text_of("CHANGELOG.md"), re.MULTILINE)
    assert changes[0] == "Unreleased" and all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", released) for released in changes[1:])
    assert changes[1].startswith(f"{cargo} ")


def test_every_alert_has_a_section_and_no_other():
    rules = yaml.safe_load((pages.ROOT / "docker/prometheus-alerts.yml").read_text())
    alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    told = re.findall(r"^### (\w+)$", pages.text_of("docs/runbook.md"), re.MULTILINE)
    assert sorted(told) == sorted(alerts)


def maker():
    spec = importlib.util.spec_from_file_location("documents", pages.ROOT / "scripts/documents.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_pages_that_are_made_are_up_to_date(program):
    """If this fails: target/venv/bin/python scripts/documents.py --write"""
    made = maker().pages(program)
    assert [name for name, text in made.items() if pages.text_of(name) != text] == []


def test_every_table_of_the_benchmarks_is_made():
    """Outside the markers there is none."""
    text = pages.text_of("docs/benchmarks.md")
    by_hand = re.sub(r"<!-- table: .*? -->.*?<!-- end of table -->", "", text, flags=re.DOTALL)
    assert text.count("\n| ") > 80 and "\n|" not in by_hand


def test_the_command_line_tells_shared_flags_once():
    text = pages.text_of("docs/reference/cli.md")
    for flag in ("--strategy <", "--triangle <", "--token-file <FILE>  File that contains an API token (not"):
        assert text.count(flag) == 1, flag


def test_what_is_made_has_every_command_setting_and_route(program):
    """The page could be up to date and empty."""
    made = maker().pages(program)
    helped = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    listed = re.findall(r"^  ([a-z]+)  ", helped.split("Options:")[0], re.MULTILINE)
    assert len(listed) > 25
    assert not [name for name in listed if name != "help" and f"\n## {name}\n" not in made["docs/reference/cli.md"]]
    for section, keys in tomllib.loads((pages.ROOT / "config/default.toml").read_text()).items():
        for key, value in keys.items():
            names = [f"{section}.{key}.{inner}" for inner in value] if isinstance(value, dict) else [f"{section}.{key}"]
            assert not [name for name in names if f"\n- `{name}` = " not in made["docs/reference/settings.md"]]
    openapi = yaml.safe_load((pages.ROOT / "openapi.yaml").read_text())
    for path, item in openapi["paths"].items():
        assert not [method for method in item if method in ("get", "post") and f"| `{method.upper()} {path}` |" not in made["docs/reference/api.md"]]
    for field in openapi["components"]["schemas"]["Plan"]["properties"]:
        assert f"| `{field}` |" in made["docs/reference/plan.md"]
