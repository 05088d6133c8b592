"""Every command of the documents: run as it stands, page by page, or compared with the program where it needs what tests have not."""

import os
import re
import signal
import socket
import subprocess
import sys
import tomllib

import pages
import pytest

BLOCKS = {page: pages.blocks(page) for page in pages.RUN}
EVERY = [block for blocks in BLOCKS.values() for block in blocks]
NAMED = [
    (block.place, words)
    for block in [*EVERY, *pages.blocks("docker/README.md")]
    if block.language == "sh"
    for words in pages.commands(block.given + block.text)
]
RUNNABLE = [page for page, blocks in BLOCKS.items() if any(block.language in ("sh", "python") and not block.not_run for block in blocks)]

# What a page's reader has around: a checkout. Searches are short, since a test has to see that commands work and not what wins.
AROUND = ["data", "docs", "benches", "python", "config", "crates"]
SETTINGS = {
    "SPARSETUNE_DEVICES__USE": '["cpu"]',
    "SPARSETUNE_SEARCH__TOP_K": "2",
    "SPARSETUNE_SEARCH__SECONDS": "20",
    "SPARSETUNE_SEARCH__HALVING_TRIALS": "4",
}
LONGEST_S = 600


@pytest.mark.parametrize(("place", "words"), NAMED, ids=[f"{place} {' '.join(words)}" for place, words in NAMED])
def test_a_command_is_one_of_the_program(place, words, program):
    done = subprocess.run([program, *words, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, f"{place}: {done.stderr}"


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def script(page, folder, port):
    """The page's blocks as one script, which names the block that it is at when it ends."""
    lines = ["set -euo pipefail", "trap 'echo \"failed in the block at $AT\" >&2' ERR"]
    for block in BLOCKS[page]:
        given, text = (part.replace("127.0.0.1:8080", f"127.0.0.1:{port}") for part in (block.given, block.text))
        if block.language == "toml" and block.rest:
            (folder / f"{block.rest}.toml").write_text(text)
        if block.not_run or block.language not in ("sh", "python"):
            continue
        lines.append(f"AT={block.place}")
        if block.language == "sh":
            lines += [given, text]
        else:
            name = f"block_{block.line}.py"
            (folder / name).write_text(given + text)
            # Without the server of the page's commands, unless the program names it.
            lines.append(f"env -u SPARSETUNE_SERVER python {name}")
    return "\n".join(lines)


@pytest.mark.parametrize("page", RUNNABLE)
def test_the_commands_of_a_page_work(page, program, tmp_path):
    folder, programs, port = tmp_path / "here", tmp_path / "programs", free_port()
    folder.mkdir()
    programs.mkdir()
    for name, place in (("sparsetune", program), ("python", sys.executable), ("python3", sys.executable)):
        (programs / name).symlink_to(place) if name == "sparsetune" else (programs / name).write_text(f'#!/bin/sh\nexec {place} "$@"\n')
        (programs / name).chmod(0o755)
    for name in AROUND:
        (folder / name).symlink_to(pages.ROOT / name)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARSETUNE_")}
    environment |= SETTINGS | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SPARSETUNE_SERVER": f"http://127.0.0.1:{port}",
        "SPARSETUNE_SERVER__LISTEN": f"127.0.0.1:{port}",
        "SPARSETUNE_DEVICES__LOCK_DIR": str(tmp_path),
        "SPARSETUNE_CACHE": str(tmp_path / "cache"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    with open(tmp_path / "said", "w+") as said:
        run = subprocess.Popen(
            ["bash", "-c", script(page, folder, port)],
            cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True,
        )
        try:
            ended = run.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            ended = f"not within {LONGEST_S} s"
        finally:
            # The servers that it started.
            try:
                os.killpg(run.pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
        said.seek(0)
        assert ended == 0, f"{page}: {ended}\n{said.read()[-6000:]}"


def test_blocks_that_are_not_run_say_why():
    known = r"needs|takes|builds|restores|changes|destroys|is for|the tests|the first command|a training"
    strange = [f"{block.place}: {block.not_run}" for block in EVERY if block.not_run is not None and not re.match(known, block.not_run)]
    assert not strange, strange
    run = [block for block in EVERY if block.language in ("sh", "python") and not block.not_run]
    assert len(run) > 25


def test_every_block_has_a_language():
    known = {"sh", "python", "toml", "text", "c", "json"}
    assert not [f"{block.place}: `{block.language}`" for block in EVERY if block.language not in known]


def test_settings_of_examples_exist():
    known = tomllib.loads((pages.ROOT / "config/default.toml").read_text())
    for block in EVERY:
        if block.language == "toml" and not block.rest:
            for section, keys in tomllib.loads(block.text).items():
                assert not [f"{block.place}: {section}.{key}" for key in keys if key not in known[section]]


def test_settings_that_pages_name_exist():
    known = tomllib.loads((pages.ROOT / "config/default.toml").read_text())
    sections = "|".join(section for section in known if section != "retention")
    for page in pages.BOOK:
        named = re.findall(rf"`({sections})\.([a-z_0-9]+)(?: = [^`]*)?`", pages.text_of(page))
        strange = [f"{section}.{key}" for section, key in named if key not in known[section] and f"{section}.{key}" not in FIELDS]
        assert not strange, f"{page}: {strange}"


# What has the name of a section and is none of its keys: parts of requests, answers and files.
FIELDS = {"worker.log"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("X=1 sparsetune fsck --data D  # a remark", [["fsck", "--data", "D"]]),
        ("sparsetune serve > log & sparsetune ready || echo no", [["serve"], ["ready"]]),
        ("curl -d '{\n\"sparsetune\": 1}' | sparsetune digest a; jq . < sparsetune", [["digest", "a"]]),
        ("sparsetune study $(printf -- '--from %s ' a b) \\\n  --write F", [["study", "--write", "F"]]),
    ],
)
def test_commands_are_found_among_what_shells_have(text, found):
    assert pages.commands(text) == found


def test_a_wrong_option_would_be_found(program):
    [words] = pages.commands("sparsetune fsck --no-such  # a remark")
    assert subprocess.run([program, *words, "--help"], capture_output=True).returncode == 2


def test_remarks_belong_to_the_next_block():
    text = "<!-- not run: needs a GPU -->\n<!-- given\nx=1\n-->\n```sh\na\n```\nwords\n```python\nb\n```\n"
    first, second = pages.blocks("p.md", text)
    assert (first.not_run, first.given, first.text, first.place) == ("needs a GPU", "x=1\n", "a\n", "p.md:5")
    assert (second.not_run, second.given, second.language) == (None, "", "python")
    with pytest.raises(ValueError, match="does not come"):
        pages.blocks("p.md", "<!-- not run: x -->\nwords\n")
