"""The examples, small, on the CPU."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

import sparsetune
from conftest import ROOT, random_csr, triangle

EXAMPLES = ROOT / "python" / "examples"


def run(name: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(EXAMPLES / name), *arguments, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def test_gcn() -> None:
    pytest.importorskip("torch")
    found = run(
        "gcn.py",
        "--device",
        "cpu",
        "--epochs",
        "3",
        "--hidden",
        "4",
        "--classes",
        "4",
        "--features",
        "4",
        "--seconds",
        "1",
    )
    assert found["nodes"] == 32768 and found["largest_loss_difference"] < 1e-4


def test_pcg() -> None:
    found = run("pcg.py", "--grid", "9", "--seconds", "2", "--check")
    assert found["sparsetune_iterations"] == found["library_iterations"] < found["plain_iterations"]
    assert found["sparsetune_residual"] < 1e-6


def test_iterations_with_approximate_solves() -> None:
    script = str(ROOT / "scripts" / "iterations.py")
    asked = ["--grid", "9", "--seconds", "2", "--only", "square"]
    command = [sys.executable, script, *asked]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    found = list(csv.DictReader(ended.stdout.splitlines()))
    solvers = [(row["solver"], row["symmetric"]) for row in found]
    assert solvers == [("conjugate_gradients", "yes"), ("gmres", "no")]
    for row in found:
        assert int(row["rows"]) == 81 and int(row["levels"]) == 17
        # On a processor both plans are exact.
        assert row["exact_iterations"] == row["approximate_iterations"] != ""
        # The usual form of conjugate gradients beside the flexible one.
        plain = row["approximate_plain_iterations"]
        assert plain == (row["approximate_iterations"] if row["symmetric"] == "yes" else "")
        left = [float(row[f"{how}_left_of_b"]) for how in ("exact", "approximate")]
        assert max(left) < 1e-12
        assert "sweeps" not in row["approximate_lower"] + row["approximate_upper"]


def test_solves_of_a_pair_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    path = ROOT / "scripts" / "iterations.py"
    spec = importlib.util.spec_from_file_location("iterations", path)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    def swept(sweeps: int, inner: int = 1) -> dict[str, Any]:
        return {"family": "sweeps", "params": {"sweeps": sweeps, "inner": inner}}

    exact = {"family": "slices", "params": {}}
    assert script.alike(exact, {"family": "chains"}) and script.alike(swept(6), swept(6))
    assert not script.alike(swept(6), swept(5)) and not script.alike(swept(6), exact)
    assert not script.alike(swept(6, 2), swept(6, 2))
    # What the environment had is there again, whatever came of it.
    for before in ("kept", None):
        if before is None:
            monkeypatch.delenv("SPARSETUNE_CACHE", raising=False)
        else:
            monkeypatch.setenv("SPARSETUNE_CACHE", before)
        with pytest.raises(Exception):
            script.tuned_anew("no matrix", True, {})
        assert os.environ.get("SPARSETUNE_CACHE") == before


def test_pruned_layer() -> None:
    pytest.importorskip("torch")
    found = run(
        "pruned_layer.py",
        "--device",
        "cpu",
        "--in",
        "96",
        "--out",
        "64",
        "--batch",
        "8",
        "--seconds",
        "2",
    )
    assert found["error"] < 1e-5


def test_the_check_can_be_made_from_its_description(tmp_path: Path) -> None:
    """The script for GPUs draws inputs and compares samples by itself; here with plans for the CPU."""
    spec = importlib.util.spec_from_file_location("run_gpu", EXAMPLES / "run_gpu.py")
    assert spec is not None and spec.loader is not None
    run_gpu = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run_gpu)
    quick = {"seconds": 3, "trials": 4}
    sparsetune.spmm(random_csr(60, 50), n=5, wait=True, layout="col", search=quick)
    sparsetune.spmm(random_csr(60, 50, dtype="float64"), n=3, wait=True, search=quick)
    sparsetune.sptrsv(triangle(70), rhs=2, wait=True, search=quick)
    paths = list((tmp_path / "cache" / "bundles").rglob("*.stplan"))
    assert len(paths) == 3
    for path in paths:
        plan = sparsetune.load(path)
        call, check = plan.manifest["call"], plan.manifest["check"]
        order = "C" if call["b"]["layout"] == "row" else "F"
        shape = (call["b"]["rows"], call["b"]["cols"])
        b = run_gpu.draw(call["b"]["element"], shape[0] * shape[1], check["seed"], check["scale"])
        assert hashlib.sha256(b.tobytes()).hexdigest() == check["b_sha256"]
        c = plan(numpy.asarray(b.reshape(shape, order=order), order=order))
        share = run_gpu.worst_share(path, check, b, c.ravel(order), shape[1])
        assert share <= 1.0
        c *= 1.01
        assert run_gpu.worst_share(path, check, b, c.ravel(order), shape[1]) > 1.0
