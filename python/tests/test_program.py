"""The program inside the package, and what importing the package costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import PROGRAM
from sparsetune._device import libraries


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True)


def test_exit_codes() -> None:
    assert run("--version").returncode == 0
    assert run("--help").stdout.startswith("Finds the fastest kernel")
    refused = run("no-such-command")
    assert refused.returncode == 2 and "no-such-command" in refused.stderr
    failed = run("digest", "/no/such/file")
    assert failed.returncode == 1 and "/no/such/file" in failed.stderr


def test_the_script_is_the_same_program() -> None:
    script = Path(sys.executable).with_name("sparsetune")
    said = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == run("--version").stdout


def test_a_closed_pipe_is_no_error() -> None:
    command = " ".join([*PROGRAM, "generate", "poisson2d:nx=200,ny=200", "|", "head", "-n", "1"])
    said = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert said.stdout.startswith("%%MatrixMarket") and said.stderr == ""


def test_tune_starts_its_own_evaluator(tmp_path: Path) -> None:
    matrix = tmp_path / "a.mtx"
    assert run("generate", "poisson2d:nx=20,ny=20", "-o", str(matrix)).returncode == 0
    said = run("tune", str(matrix), "--n", "8", "--device", "cpu", "--top-k", "2", "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["plan"]["problem"]["n"] == 8


def imported(code: str) -> set[str]:
    told = f"import sys; {code}; print('\\n'.join(sys.modules))"
    said = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    return set(said.stdout.split())


def test_importing_is_light() -> None:
    assert "numpy" not in imported("import sparsetune")
    assert "numpy" not in imported("import sparsetune.__main__")
    heavy = {"torch", "cupy", "scipy"}
    assert not heavy & imported("import sparsetune; sparsetune.Client; sparsetune.matrix")


def test_cuda_libraries_are_looked_for_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/no/such/folder"])
    monkeypatch.setenv("SPARSETUNE_LIBRARIES", "/second:/third")
    found = libraries(["/first"])
    assert found == ["/first", "/second", "/third", str(tmp_path / "nvidia")]
