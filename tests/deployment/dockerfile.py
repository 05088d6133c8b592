"""Reads what a Dockerfile says: its steps and stages, and the context that .dockerignore leaves. test_images.py carries out what can be done
without a container engine."""

import dataclasses
import fnmatch
import json
import re
import shutil

KNOWN = {
    "ARG", "FROM", "RUN", "WORKDIR", "COPY", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD", "ENV",
}


@dataclasses.dataclass
class Step:
    """One instruction: its name, its flags (`--from=build`), and the rest as it stands, or the words of a JSON list."""

    name: str
    flags: dict
    rest: str

    @property
    def words(self):
        return json.loads(self.rest) if self.rest.startswith("[") else self.rest.split()


def read(path):
    """The steps of a Dockerfile; an instruction or a form that is not understood is an error."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    steps = []
    for line in filter(str.strip, joined.splitlines()):
        name, rest = line.split(None, 1)
        if name not in KNOWN:
            raise ValueError(f"{path.name}: {name} is not understood")
        flags = {}
        while found := re.match(r"--([a-z-]+)=(\S+)\s+", rest):
            flags.setdefault(found[1], []).append(found[2])
            rest = rest[found.end():]
        steps.append(Step(name, flags, rest.strip()))
    return steps


def stages(steps):
    """The stages in order, each with its base, its name and its steps; ARGs before the first are filled in."""
    arguments, found = {}, []
    for step in steps:
        if step.name == "ARG":
            name, _, value = step.rest.partition("=")
            # An argument that is named again within a stage keeps the value from before the first.
            arguments.setdefault(name, value)
        if step.name == "FROM":
            base, *named = step.rest.split()
            found.append({"base": fill(base, arguments), "name": named[1] if named else None, "steps": []})
        elif found:
            found[-1]["steps"].append(dataclasses.replace(step, rest=fill(step.rest, arguments)))
    return found


def fill(text, arguments):
    return re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]] if found[1] in arguments else found[0], text)


def rules(text):
    """The patterns of a .dockerignore, each with whether it puts back."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    return [(line.lstrip("!").strip("/"), line.startswith("!")) for line in lines]


def left_in(path, patterns):
    """Whether a file (relative, with slashes) is in the context: the last pattern that fits it, or a folder of it, decides."""
    inside = True
    parts = path.split("/")
    above = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
    for pattern, back in patterns:
        if any(fits(candidate, pattern) for candidate in above):
            inside = back
    return inside


def fits(path, pattern):
    expression = "".join(
        {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(part, re.escape(part))
        for part in re.findall(r"\*\*/|\*\*|\*|\?|[^*?]+", pattern)
    )
    return re.fullmatch(expression, path) is not None


def context(root, files, folder):
    """Makes `folder` hold what the build would get of these files of `root`: nothing else, and what is there already is left alone,
    with its times, so that a build in it goes on from the last one."""
    patterns = rules((root / ".dockerignore").read_text())
    wanted = {name for name in files if left_in(name, patterns)}
    for name in sorted(wanted):
        target, source = folder / name, root / name
        if source.is_symlink():
            # COPY leaves a link what it is.
            if not (target.is_symlink() and target.readlink() == source.readlink()):
                target.parent.mkdir(parents=True, exist_ok=True)
                if target.is_symlink() or target.is_file():
                    target.unlink()
                target.symlink_to(source.readlink())
            continue
        if not (target.is_file() and target.read_bytes() == source.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    for found in sorted(folder.rglob("*"), reverse=True):
        if (found.is_file() or found.is_symlink()) and found.relative_to(folder).as_posix() not in wanted:
            found.unlink()
        elif found.is_dir() and not found.is_symlink() and not any(found.iterdir()):
            found.rmdir()
    return wanted


def named_by(pattern, names):
    """The files of a context that a source of COPY means."""
    pattern = pattern.strip("./")
    return [name for name in names if not pattern or name == pattern or name.startswith(pattern + "/") or fnmatch.fnmatch(name, pattern)]
