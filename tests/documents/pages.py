"""Reads pages of Markdown: their blocks of code with what stands before them, their links, and their headings."""

import dataclasses
import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Whose blocks are run: the book, and what people read first. The others' links are checked.
BOOK = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
RUN = ["README.md", "python/README.md", *BOOK]
LINKED = [
    *RUN, "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docker/README.md", "benches/NOTES.md", "benches/PAPERS.md",
    "config/models/README.md", "data/README.md", "fuzz/README.md",
]


@dataclasses.dataclass
class Block:
    """A fenced block: where it is, its language with what follows that, its text, why it is not run (None if it is), and what the
    page's reader has already, as lines of the same language."""

    page: str
    line: int
    language: str
    rest: str
    text: str
    not_run: str | None
    given: str

    @property
    def place(self):
        return f"{self.page}:{self.line}"


def text_of(page):
    return (ROOT / page).read_text()


def blocks(page, text=None):
    """The fenced blocks in order. Remarks count for a block if nothing but remarks stands between them and it."""
    lines = (text_of(page) if text is None else text).splitlines()
    found, not_run, given, at = [], None, "", 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("<!--"):
            remark, first = [line], at
            while "-->" not in lines[at]:
                at += 1
                if at == len(lines):
                    raise ValueError(f"{page}:{first + 1}: a remark that does not end")
                remark.append(lines[at])
            said = "\n".join(remark).removeprefix("<!--").rsplit("-->", 1)[0]
            if said.strip().startswith("not run:"):
                not_run = said.strip().removeprefix("not run:").strip()
            elif said.lstrip().startswith("given\n"):
                given = said.lstrip().removeprefix("given\n")
        elif line.startswith("```"):
            language, _, rest = line[3:].partition(" ")
            first, body = at + 1, []
            at += 1
            while lines[at] != "```":
                body.append(lines[at])
                at += 1
            found.append(Block(page, first, language, rest, "\n".join(body) + "\n", not_run, given))
            not_run, given = None, ""
        elif line.strip():
            if not_run is not None or given:
                raise ValueError(f"{page}:{at + 1}: a remark for a block that does not come")
        at += 1
    return found


def prose(page, text=None):
    """The page without blocks, remarks and code in the line."""
    text = text_of(page) if text is None else text
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL))


def links(page, text=None):
    """Where links and pictures lead, without those to other hosts."""
    found = re.findall(r"\]\(<?([^)\s>]+)>?\)", prose(page, text)) + re.findall(r'<img src="([^"]+)"', prose(page, text))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(page, text=None):
    """The names of headings, as mdBook and code hosts make them."""
    text = re.sub(r"^```.*?^```$", "", text_of(page) if text is None else text, flags=re.DOTALL | re.MULTILINE)
    found = []
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        number = sum(other == name or re.fullmatch(re.escape(name) + r"-\d+", other) is not None for other in found)
        found.append(f"{name}-{number}" if number else name)
    return found


def words_of(line):
    """The words and operators of a line of a shell. What a shell puts in has no place in a comparison of options."""
    lexer = shlex.shlex(re.sub(r"\$\([^()]*\)", "", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(lexer)


def whole_lines(text):
    """Lines of a shell, with those that go on joined: behind a backslash, or within quotes."""
    so_far = ""
    for line in text.replace("\\\n", " ").splitlines():
        so_far += line + "\n"
        try:
            words_of(so_far)
        except ValueError:
            continue
        yield so_far
        so_far = ""
    if so_far:
        raise ValueError(f"quotes that do not end: {so_far}")


def commands(text):
    """The program's commands within a block of shell, without variables, redirections and what else is on their lines."""
    found = []
    for line in whole_lines(text):
        words = []
        for word in [*words_of(line), ";"]:
            if not re.fullmatch(r"[();<>|&]+", word):
                words.append(word)
                continue
            while words and re.fullmatch(r"[A-Za-z_0-9]+=.*", words[0]):
                words.pop(0)
            if words[:1] == ["sparsetune"]:
                found.append(words[1:])
            # A file that is read or written, not a program.
            words = ["to"] if "<" in word or ">" in word else []
    return found
