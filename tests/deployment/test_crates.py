"""What `cargo publish` would send: packages that are built of themselves alone, as by somebody who has no checkout."""

import os
import re
import subprocess
import tarfile
import tomllib

import pytest

# In the order in which they are published.
PUBLISHED = ["sparsetune-core", "sparsetune"]


def unpack(crate, folder):
    """Files that are as they were keep their time, and others get that of now: packed ones have all the same, by which cargo would think
    that nothing has changed."""
    with tarfile.open(crate) as archive:
        files = {member.name.split("/", 1)[1]: archive.extractfile(member).read() for member in archive if member.isfile()}
    # Below the folder of the workspace, cargo would take it for a part of that.
    files["Cargo.toml"] += b"\n[workspace]\n"
    for found in list(folder.rglob("*")):
        if found.is_file() and found.relative_to(folder).as_posix() not in files:
            found.unlink()
    for name, contents in files.items():
        target = folder / name
        if not (target.is_file() and target.read_bytes() == contents):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(contents)


@pytest.fixture(scope="session")
def packages(root):
    """The unpacked packages by name."""
    target = root / "target/deployment/crates"
    words = [word for name in PUBLISHED for word in ("--package", name)]
    command = ["cargo", "package", "--offline", "--allow-dirty", "--no-verify", "--target-dir", str(target), *words]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    version = tomllib.loads((root / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    unpacked = {name: target / "unpacked" / f"{name}-{version}" for name in PUBLISHED}
    for name, folder in unpacked.items():
        unpack(target / f"package/{name}-{version}.crate", folder)
    return unpacked


def test_only_what_is_published_may_be(root):
    """What cannot be built of itself says so."""
    for manifest in ["Cargo.toml", "crates/core/Cargo.toml", "crates/c/Cargo.toml", "python/Cargo.toml", "fuzz/Cargo.toml"]:
        package = tomllib.loads((root / manifest).read_text())["package"]
        assert package.get("publish", True) == (package["name"] in PUBLISHED), manifest


def test_a_package_has_its_rooms_and_what_they_embed(packages, root):
    for name, library in (("sparsetune-core", "src/core.rs"), ("sparsetune", "src/lib.rs")):
        folder = packages[name]
        assert (folder / "LICENSE").read_bytes() == (root / "LICENSE").read_bytes()
        rooms = re.findall(r"^pub mod (\w+);", (folder / library).read_text(), re.MULTILINE)
        assert len(rooms) > 8
        for room in rooms:
            assert any((folder / "src" / place).is_file() for place in (f"{room}.rs", f"{room}/mod.rs")), f"{name}: {room}"
            # Nothing of a room is left out.
            for source in (root / "src" / room).rglob("*"):
                if source.is_file():
                    assert (folder / source.relative_to(root)).is_file(), f"{name}: {source}"
    embedded = {"sparsetune-core": ["kernels"], "sparsetune": ["migrations", "web", "config/models"]}
    for name, folders in embedded.items():
        for one in folders:
            names = [file.relative_to(root) for file in (root / one).rglob("*") if file.is_file()]
            assert names and all((packages[name] / file).is_file() for file in names), f"{name}: {one}"


def test_packages_are_built_of_themselves(packages, root):
    """As a check, which expands every macro that embeds a file, on the packages alone; the one is taken where the other would be fetched."""
    core = packages["sparsetune-core"]
    # The profiles of the workspace, so that the crates of others are those that test_images.py has checked.
    manifest, profiles = (root / "Cargo.toml").read_text(), core.parent / "profiles.toml"
    profiles.write_text(manifest[manifest.index("[profile.dev]"):])
    settings = ["--config", str(profiles), "--config", f'patch.crates-io.sparsetune-core.path="{core}"']
    command = ["cargo", "check", "--release", "--offline", "--quiet", "--bin", "sparsetune", *settings]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(root / "target"), "CARGO_INCREMENTAL": "0"}
    done = subprocess.run(command, cwd=packages["sparsetune"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
