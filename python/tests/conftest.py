"""Fixtures: matrices as people have them, and a live server of the package's own program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import numpy
import pytest
import scipy.sparse

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = [sys.executable, "-m", "sparsetune"]


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache, or asks a server that the environment names."""
    monkeypatch.setenv("SPARSETUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARSETUNE_SERVER", raising=False)
    monkeypatch.delenv("SPARSETUNE_TOKEN", raising=False)


def random_csr(
    rows: int, cols: int, density: float = 0.1, seed: int = 0, dtype: str = "float32"
) -> scipy.sparse.csr_matrix:
    """A random matrix with an empty row and one full row, where there is room."""
    rng = numpy.random.default_rng(seed)
    dense = rng.standard_normal((rows, cols)) * (rng.random((rows, cols)) < density)
    if rows > 3:
        dense[1] = 0
        dense[2] = rng.standard_normal(cols)
    return scipy.sparse.csr_matrix(dense.astype(dtype))


def triangle(
    rows: int, lower: bool = True, seed: int = 0, dtype: str = "float64"
) -> scipy.sparse.csr_matrix:
    """A well-conditioned triangular matrix."""
    A = random_csr(rows, rows, 0.05, seed, dtype) * numpy.dtype(dtype).type(0.1)
    A.setdiag(numpy.arange(rows) % 5 + 2)
    part = scipy.sparse.tril(A) if lower else scipy.sparse.triu(A)
    return part.tocsr().astype(dtype)


class Server:
    def __init__(self, url: str, token: str) -> None:
        self.url, self.token = url, token


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A live server on the CPU that requires a token."""
    folder, token = tmp_path_factory.mktemp("server"), "0123456789abcdef0123456789abcdef"
    environment = {
        **os.environ,
        "SPARSETUNE_DEVICES__USE": '["cpu"]',
        "SPARSETUNE_SERVER__TOKENS": f'["{token}"]',
    }
    command = [*PROGRAM, "serve", "--listen", "127.0.0.1:0", "--data", str(folder / "data")]
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
    )
    assert process.stdout is not None
    found = re.search(r"listening on (\S+)", process.stdout.readline())
    assert found, (folder / "log").read_text()
    subprocess.run([*PROGRAM, "ready", "--server", found[1], "--wait", "60"], check=True)
    yield Server(found[1], token)
    process.terminate()
    assert process.wait(30) == 0, (folder / "log").read_text()
