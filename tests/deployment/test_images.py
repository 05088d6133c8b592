"""The Dockerfiles, carried out without a container engine: what .dockerignore leaves is compiled as the build step says, each COPY finds
its source, and the start command and the health check are run."""

import os
import pathlib
import shlex
import signal
import socket
import subprocess
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
    return folder, dockerfile.context(root, [name for name in names if name and (root / name).is_file()], folder)


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
    """The build step, on the very context: the compiler expands every macro that embeds a file, and links nothing."""
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


def start(program, words, port, folder, token):
    """The image's start command, with its address and folder exchanged, which a container would have to itself."""
    words = [word.replace("8080", str(port)).replace("/var/lib/sparsetune", str(folder)) for word in words]
    settings = {"SPARSETUNE_DEVICES__USE": '["cpu"]', "SPARSETUNE_DEVICES__LOCK_DIR": str(folder)}
    if token:
        settings["SPARSETUNE_SERVER__TOKENS"] = f'["{token}"]'
    return subprocess.Popen([program, *words], env={**os.environ, **settings}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def test_the_start_command_serves_with_a_token_only(stages, program, tmp_path):
    assert words_of(stages, "ENTRYPOINT") == ["sparsetune"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = words_of(stages, "CMD")
    refused = start(program, command, port, tmp_path / "refused", None)
    _, told = refused.communicate(timeout=60)
    assert refused.returncode == 1 and "token" in told
    server = start(program, command, port, tmp_path / "data", TOKEN)
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
