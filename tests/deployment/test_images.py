"""The Dockerfiles, carried out without a container engine, as far as that goes: what .dockerignore leaves is checked by the compiler, with
the build step's words but for the release build, which takes minutes; then `install`, COPY and useradd are done in folders that stand for
the stages' roots, with the program of the tests in place of the release build, and what lies there is started as the image's user."""

import os
import pathlib
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import dockerfile
import pytest

FILES = ["Dockerfile.cpu", "Dockerfile.cuda"]
TOKEN = "a-token-of-the-tests-alone"
BUILD = "cargo build --release --locked"


@pytest.fixture(scope="session")
def built(root):
    """The context in a folder that is kept, so that only what changed is compiled again, and its files."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
    folder = root / "target/deployment/context"
    folder.mkdir(parents=True, exist_ok=True)
    return folder, dockerfile.context(root, [name for name in names if name and ((root / name).is_file() or (root / name).is_symlink())], folder)


@pytest.fixture(scope="session", params=FILES)
def stages(request, root):
    return dockerfile.stages(dockerfile.read(root / "docker" / request.param))


def words_of(stages, name):
    return next(step.words for step in stages[-1]["steps"] if step.name == name)


def test_the_context_has_no_more_than_the_build_reads(built):
    _, names = built
    strange = [name for name in names if name.split("/")[0] in ("tests", "docs", "target", ".git", "docker", "scripts", "fuzz")]
    # The manifest names it.
    assert strange == ["tests/otel.rs"]
    assert {"Cargo.lock", "askama.toml", "web/templates/base.html", "crates/core/Cargo.toml"} <= names


def test_what_is_embedded_is_in_the_context(built, root):
    """The build step on the very context, as a check: the compiler expands every macro that embeds a file, and makes no program."""
    folder, _ = built
    command = BUILD.replace("build --release", "check") + " --offline --quiet --bin sparsetune"
    environment = {**os.environ, "CARGO_TARGET_DIR": str(root / "target"), "CARGO_INCREMENTAL": "0"}
    done = subprocess.run(shlex.split(command), cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


def test_every_copy_finds_its_source(stages, built):
    """COPY from the context finds files; COPY from a stage finds what that stage's RUN made, and RUN builds with the lock file."""
    _, names = built
    made = {}
    for stage in stages:
        produced = made.setdefault(stage["name"], {})
        for step in stage["steps"]:
            if step.name == "COPY" and "from" in step.flags:
                source, target = step.words
                assert made[step.flags["from"][0]].get(source) == "target/release/sparsetune"
                produced[target] = source
            elif step.name == "COPY":
                *sources, _ = step.words
                assert all(dockerfile.named_by(source, names) for source in sources)
            elif step.name == "RUN" and "cargo" in step.rest:
                build, install = (part.strip() for part in step.rest.split("&&"))
                assert build == BUILD
                word, flag, binary, place = install.split()
                assert (word, flag) == ("install", "-D")
                produced[place] = binary
    assert made[None]["/usr/local/bin/sparsetune"]


@pytest.fixture(scope="session")
def image(stages, program):
    """The root of the last stage, as the steps make it of the built program; the user that it starts as, where we may become that one."""
    top = pathlib.Path(tempfile.mkdtemp(prefix="sparsetune-image-"))
    # pytest's own folders are for their owner alone, and the image's user has to come in.
    top.chmod(0o755)
    user = None
    roots = {}
    try:
        for number, stage in enumerate(stages):
            root = roots[stage["name"]] = top / str(number)
            (root / "etc").mkdir(parents=True)
            for file in ("passwd", "group", "shadow", "gshadow"):
                (root / "etc" / file).touch()
            here = root
            for step in stage["steps"]:
                if step.name == "WORKDIR":
                    here = root / step.rest.lstrip("/")
                    here.mkdir(parents=True, exist_ok=True)
                elif step.name == "COPY" and "from" in step.flags:
                    source, target = (path.lstrip("/") for path in step.words)
                    (root / target).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(roots[step.flags["from"][0]] / source, root / target)
                elif step.name == "RUN":
                    for words in map(shlex.split, step.rest.split("&&")):
                        if words[:2] == ["cargo", "build"]:
                            (here / "target/release").mkdir(parents=True)
                            (here / "target/release/sparsetune").symlink_to(program)
                        elif words[0] == "install":
                            subprocess.run([*words[:-1], root / words[-1].lstrip("/")], cwd=here, check=True)
                        elif words[0] == "useradd" and os.geteuid() == 0:
                            subprocess.run([words[0], "--prefix", root, *words[1:]], check=True, capture_output=True)
                elif step.name == "USER" and os.geteuid() == 0:
                    user = int(step.rest)
        yield root, user
    finally:
        shutil.rmtree(top)


def test_the_program_is_in_the_image_for_everybody(image):
    root, user = image
    mode = (root / "usr/local/bin/sparsetune").stat().st_mode
    assert mode & 0o555 == 0o555 and not mode & 0o022
    if user:
        home = (root / "var/lib/sparsetune").stat()
        assert (home.st_uid, [line.split(":")[:3] for line in (root / "etc/passwd").read_text().splitlines()]) == (
            user, [["sparsetune", "x", str(user)]],
        )


def test_the_process_is_no_root_and_owns_its_folder(stages):
    steps = {step.name: step for step in stages[-1]["steps"]}
    added = next(step.rest for step in stages[-1]["steps"] if step.name == "RUN" and "useradd" in step.rest)
    assert f"--uid {steps['USER'].rest} " in added and steps["USER"].rest != "0"
    home = steps["VOLUME"].rest
    assert f"--home-dir {home} " in added and "--create-home" in added and steps["WORKDIR"].rest == home
    command = words_of(stages, "CMD")
    assert command[command.index("--data") + 1] == home


def test_the_image_for_gpus_has_what_the_program_opens(root):
    """NVRTC, cuSPARSE and cuBLAS, of the CUDA version that the base image is of, for either version."""
    text = (root / "docker/Dockerfile.cuda").read_text()
    stages = dockerfile.stages(dockerfile.read(root / "docker/Dockerfile.cuda"))
    version = next(line.split("=")[1] for line in text.splitlines() if line.startswith("ARG CUDA_PACKAGES="))
    assert stages[-1]["base"].startswith(f"nvidia/cuda:{version.replace('-', '.')}.")
    installed = next(step.rest for step in stages[-1]["steps"] if "apt-get" in step.rest).split()
    libraries = {f"{name}-{version}" for name in ("cuda-nvrtc", "libcusparse", "libcublas")}
    assert libraries <= set(installed)
    # Every further pair of image and packages that the file names belongs together, too.
    for line in text.splitlines():
        if "--build-arg CUDA_IMAGE=" in line:
            arguments = dict(word.split("=") for word in line.split() if "=" in word)
            assert arguments["CUDA_IMAGE"].startswith(f"nvidia/cuda:{arguments['CUDA_PACKAGES'].replace('-', '.')}.")


def start(image, words, port, token):
    """The image's start command of its own program, as its user and in its folder, with the address exchanged, which a container would have to
    itself, and paths that begin in the image's root."""
    root, user = image
    home = root / "var/lib/sparsetune"
    words = [word.replace("8080", str(port)).replace("/var/lib/sparsetune", str(home)) for word in words]
    settings = {"SPARSETUNE_DEVICES__USE": '["cpu"]', "SPARSETUNE_DEVICES__LOCK_DIR": str(home), "HOME": str(home)}
    if token:
        settings["SPARSETUNE_SERVER__TOKENS"] = f'["{token}"]'
    rights = {"user": user, "group": user, "extra_groups": []} if user else {}
    return subprocess.Popen(
        [root / "usr/local/bin/sparsetune", *words],
        env={**os.environ, **settings}, cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **rights,
    )


def test_the_start_command_serves_with_a_token_only(stages, image):
    program = image[0] / "usr/local/bin/sparsetune"
    assert words_of(stages, "ENTRYPOINT") == ["sparsetune"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = words_of(stages, "CMD")
    refused = start(image, command, port, None)
    _, told = refused.communicate(timeout=60)
    assert refused.returncode == 1 and "token" in told
    server = start(image, command, port, TOKEN)
    try:
        check = next(step for step in stages[-1]["steps"] if step.name == "HEALTHCHECK")
        words = dockerfile.Step("CMD", {}, check.rest.removeprefix("CMD").strip()).words
        assert words[0] == "sparsetune"
        until, ready = time.monotonic() + 60, None
        while ready != 0 and time.monotonic() < until:
            ready = subprocess.run([program, *(word.replace("8080", str(port)) for word in words[1:])], capture_output=True).returncode
            time.sleep(0.2)
        assert ready == 0
        stop = next(step.rest for step in stages[-1]["steps"] if step.name == "STOPSIGNAL")
        server.send_signal(getattr(signal, stop))
        assert server.wait(30) == 0
    finally:
        server.kill()
        server.communicate()


@pytest.mark.parametrize(
    ("path", "inside"),
    [("src/main.rs", True), ("src/deep/file.rs", True), ("tests/tidy.rs", False), ("python/a/__pycache__/b.pyc", False), ("Cargo.toml", True)],
)
def test_ignoring_follows_the_last_rule_that_fits(path, inside):
    patterns = dockerfile.rules("*\n!src\n!python\n!Cargo.toml\n**/__pycache__\n# a remark\n")
    assert dockerfile.left_in(path, patterns) is inside
    assert not dockerfile.left_in("src/x", dockerfile.rules("*\n!src\nsrc/x"))


def test_a_source_that_is_left_out_is_not_found(tmp_path):
    (tmp_path / ".dockerignore").write_text("*\n!src\n")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/main.rs").write_text("fn main() {}")
    (tmp_path / "openapi.yaml").write_text("")
    folder = tmp_path / "context"
    names = dockerfile.context(tmp_path, ["src/main.rs", "openapi.yaml"], folder)
    assert names == {"src/main.rs"} and not pathlib.Path(folder, "openapi.yaml").exists()
    assert dockerfile.named_by(".", names) == ["src/main.rs"] and not dockerfile.named_by("openapi.yaml", names)
