"""The documents for operators: each command that they name is one of the program with those options, and each alert has its section."""

import pathlib
import re
import shlex
import subprocess

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[2]
PAGES = ["docs/runbook.md", "docs/keeping.md", "docs/postgres.md"]


def commands(text):
    """The lines of shell blocks that begin with the program, without what is before, after and beside it."""
    found = []
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.split(" | ")[0], comments=True)
            while words and re.fullmatch(r"[A-Z_0-9]+=.*", words[0]):
                words.pop(0)
            if words and words[0] == "sparsetune":
                found.append(words[1:])
    return found


NAMED = [(page, words) for page in PAGES for words in commands((ROOT / page).read_text())]


def test_the_runbook_names_commands():
    assert sum(page == "docs/runbook.md" for page, _ in NAMED) > 15


@pytest.mark.parametrize(("page", "words"), NAMED, ids=[" ".join(words) for _, words in NAMED])
def test_a_command_is_one_of_the_program(page, words, program):
    done = subprocess.run([program, *words, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, f"{page}: {done.stderr}"


def test_a_wrong_option_would_be_found(program):
    assert commands("```sh\nX=1 sparsetune fsck --no-such  # a remark\n```") == [["fsck", "--no-such"]]
    done = subprocess.run([program, "fsck", "--no-such", "--help"], capture_output=True)
    assert done.returncode == 2


def test_every_alert_has_a_section_and_no_other():
    rules = yaml.safe_load((ROOT / "docker/prometheus-alerts.yml").read_text())
    alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    told = re.findall(r"^### (\w+)$", (ROOT / "docs/runbook.md").read_text(), re.MULTILINE)
    assert sorted(told) == sorted(alerts)


def test_settings_that_are_named_exist():
    known = set(re.findall(r"^(\w+) = ", (ROOT / "config/default.toml").read_text(), re.MULTILINE))
    named = re.findall(r"`(server|data|worker|limits|drift|postgres|evaluator|log)\.(\w+)", (ROOT / "docs/runbook.md").read_text())
    assert named and not [f"{section}.{key}" for section, key in named if key not in known]


def test_pages_that_are_linked_are_there():
    for link in re.findall(r"\]\(([\w./-]+\.md)", (ROOT / "docs/runbook.md").read_text()):
        assert (ROOT / "docs" / link).is_file(), link
