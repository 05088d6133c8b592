"""The Debian package: built of the program, unpacked into a folder, and served from there; and the workflow of a release."""

import configparser
import gzip
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tomllib

import pytest
import yaml


def run(*words, **settings):
    return subprocess.run(words, capture_output=True, text=True, **settings)


@pytest.fixture(scope="session")
def package(root, program, tmp_path_factory):
    """The file of the package, packed without compression, which is fast, and the folder that it was unpacked into."""
    folder = tmp_path_factory.mktemp("package")
    built = run(root / "packaging/build-deb", program, folder, env={**os.environ, "DPKG_DEB_OPTIONS": "-Znone"})
    assert built.returncode == 0, built.stderr
    file, unpacked = built.stdout.strip(), folder / "unpacked"
    assert run("dpkg", "-x", file, unpacked).returncode == 0
    assert run("dpkg", "-e", file, unpacked / "DEBIAN").returncode == 0
    return file, unpacked


def test_the_package_says_what_it_is(package, root):
    file, _ = package
    version = re.search(r'^version = "(.*)"', (root / "Cargo.toml").read_text(), re.MULTILINE)[1]
    fields = dict(re.findall(r"^ ?(\S+): (.*)$", run("dpkg-deb", "-f", file).stdout, re.MULTILINE))
    assert fields["Package"] == "sparsetune" and fields["Version"] == version
    assert re.match(r"libc6 \(>= 2\.\d+\), libgcc-s1$", fields["Depends"])


def test_what_is_installed_belongs_to_root_and_is_where_it_should(package):
    file, unpacked = package
    for line in run("dpkg-deb", "-c", file).stdout.splitlines():
        mode, owner, *_ = line.split()
        assert owner == "root/root" and mode[8] != "w", line
    assert (unpacked / "DEBIAN/conffiles").read_text() == "/etc/sparsetune/sparsetune.toml\n"
    for script in ("postinst", "prerm"):
        assert run("sh", "-n", unpacked / "DEBIAN" / script).returncode == 0


def test_shells_and_man_know_the_program(package):
    _, unpacked = package
    share = unpacked / "usr/share"
    assert {"sparsetune.1.gz", "sparsetune-tune.1.gz"} <= {page.name for page in (share / "man/man1").iterdir()}
    assert run("bash", "-n", share / "bash-completion/completions/sparsetune").returncode == 0
    for place in ("bash-completion/completions/sparsetune", "zsh/vendor-completions/_sparsetune", "fish/vendor_completions.d/sparsetune.fish"):
        assert "quickstart" in (share / place).read_text()


def test_the_unit_starts_what_is_installed(package, program):
    _, unpacked = package
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(unpacked / "usr/lib/systemd/system/sparsetune.service")
    binary, *words = unit["Service"]["ExecStart"].split()
    config = words[words.index("--config") + 1]
    assert (unpacked / binary.lstrip("/")).is_file() and (unpacked / config.lstrip("/")).is_file()
    assert unit["Service"]["User"] == "sparsetune"
    assert (unpacked / "usr/lib/sysusers.d/sparsetune.conf").read_text().startswith("u sparsetune ")
    assert run(program, *words, "--help").returncode == 0
    if shutil.which("systemd-analyze"):
        # The folder has the unit alone, and none of the targets that it comes after.
        judged = run("systemd-analyze", "verify", "--root", unpacked, "sparsetune.service").stderr.splitlines()
        assert not [line for line in judged if "sparsetune.service:" in line and not line.endswith("target not found.")]


@pytest.mark.skipif(not shutil.which("systemd-sysusers"), reason="no systemd here")
def test_the_service_gets_its_user(package, tmp_path):
    _, unpacked = package
    shutil.copytree(unpacked / "usr/lib", tmp_path / "usr/lib")
    (tmp_path / "etc").mkdir()
    done = run("systemd-sysusers", f"--root={tmp_path}", "sparsetune.conf")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^sparsetune:x:\d+:\d+:.*:/var/lib/sparsetune:/usr/sbin/nologin$", (tmp_path / "etc/passwd").read_text(), re.MULTILINE)


def test_the_installed_program_serves_with_its_configuration(package, tmp_path):
    _, unpacked = package
    installed = unpacked / "usr/bin/sparsetune"
    settings = {"SPARSETUNE_DEVICES__USE": '["cpu"]', "SPARSETUNE_DEVICES__LOCK_DIR": str(tmp_path)}
    words = ["serve", "--config", unpacked / "etc/sparsetune/sparsetune.toml", "--listen", "127.0.0.1:0", "--data", tmp_path / "data"]
    with subprocess.Popen(
        [installed, *words], env={**os.environ, **settings}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            address = re.search(r"http://\S+", server.stdout.readline())[0]
            assert run(installed, "ready", "--server", address, "--wait", "60").returncode == 0
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 0
        finally:
            server.kill()


def test_a_tag_must_be_the_version(root):
    version = re.search(r'^version = "(.*)"', (root / "Cargo.toml").read_text(), re.MULTILINE)[1]
    check = [root / "packaging/release", "--check"]
    assert run(*check, f"v{version}").returncode == 0
    for wrong in (version, "v9.9.9"):
        refused = run(*check, wrong)
        assert refused.returncode != 0 and "is not the version" in refused.stderr


def test_the_workflow_is_one_and_runs_what_there_is(root):
    file = root / ".github/workflows/release.yml"
    tool = pathlib.Path(sys.executable).with_name("check-jsonschema")
    judged = run(tool, "--builtin-schema", "vendor.github-workflows", file)
    assert judged.returncode == 0, judged.stdout + judged.stderr
    workflow = yaml.safe_load(file.read_text())
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    ours = [command.split()[0] for command in commands if "/" in command.split()[0]]
    # The images come first, since packaging/release sums up what is in the folder.
    assert ours == ["./.ci/run", "target/tools/bin/mdbook", "packaging/images", "packaging/release"]
    assert all(os.access(root / path, os.X_OK) for path in ours if not path.startswith("target/"))


def test_the_workflow_tests_where_the_tests_can_run(root):
    """On Debian, as scripts/test wants it; with the toolchain of the images, and the site from where mdBook puts it."""
    job = yaml.safe_load((root / ".github/workflows/release.yml").read_text())["jobs"]["test"]
    version = re.search(r"^ARG RUST_VERSION=(.*)$", (root / "docker/Dockerfile.cpu").read_text(), re.MULTILINE)[1]
    assert job["container"] == f"rust:{version}-bookworm"
    script = (root / "scripts/test").read_text()
    assert "readonly TOOLS=$PWD/target/tools" in script and '--root "$TOOLS"' in script
    [site] = [step["with"]["path"] for step in job["steps"] if "upload-artifact" in step.get("uses", "")]
    book = tomllib.loads((root / "docs/book.toml").read_text())["build"]["build-dir"]
    assert (root / "docs" / book).resolve() == (root / site).resolve()


def test_each_image_is_built_and_saved(root, tmp_path):
    """With a `docker` that only notes what it is told."""
    said = tmp_path / "said"
    (tmp_path / "docker").write_text(f'#!/bin/sh\necho "$@" >>{said}\n[ "$1" != save ] || echo layers\n')
    (tmp_path / "docker").chmod(0o755)
    version = re.search(r'^version = "(.*)"', (root / "Cargo.toml").read_text(), re.MULTILINE)[1]
    out = tmp_path / "out"
    done = run(root / "packaging/images", f"v{version}", out, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.returncode == 0, done.stderr
    kinds = sorted(path.name.removeprefix("Dockerfile.") for path in (root / "docker").glob("Dockerfile.*") if 'ENTRYPOINT ["sparsetune"]' in path.read_text())
    told = said.read_text().splitlines()
    for kind in kinds:
        assert f"build --file docker/Dockerfile.{kind} --tag sparsetune:{version}-{kind} --tag sparsetune:{kind} ." in told
        assert f"save sparsetune:{version}-{kind} sparsetune:{kind}" in told
        assert gzip.decompress((out / f"sparsetune-{version}-image-{kind}.tar.gz").read_bytes()) == b"layers\n"
    assert len(told) == 2 * len(kinds)
    assert run(root / "packaging/images", "v9.9.9", out).returncode != 0
