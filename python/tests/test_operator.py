"""Products and solves on the CPU: untuned, tuned, from disk; values, refusals, solvers of SciPy."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest
import scipy.sparse
import scipy.sparse.linalg

import sparsetune
from sparsetune import _fallback, _finder
from sparsetune._problem import sptrsv_problem
from sparsetune._source import source_of
from conftest import random_csr, triangle

#: A search that takes a moment.
QUICK: dict[str, Any] = {"top_k": 2, "seconds": 5}
HALVING: dict[str, Any] = {"trials": 4, "seconds": 5}


def operand(
    rows: int, n: int, dtype: str, layout: str = "row", seed: int = 7
) -> numpy.ndarray[Any, Any]:
    B = numpy.random.default_rng(seed).standard_normal((rows, n)).astype(dtype)
    return B if layout == "row" else numpy.asfortranarray(B)


def close(found: Any, A: Any, B: Any, dtype: str) -> None:
    """Compared with float64, against the sum of the absolute values of the terms."""
    dense, wide = abs(A).astype("float64").toarray(), B.astype("float64")
    exact, size = A.astype("float64") @ wide, dense @ abs(wide)
    tolerance = 2e-6 if dtype == "float32" else 1e-14
    assert found.shape == exact.shape
    assert (abs(found - exact) <= tolerance * size + 1e-300).all()


@pytest.mark.parametrize("n", [1, 3, 33])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["row", "col"])
def test_untuned_products(n: int, dtype: str, layout: str) -> None:
    A = random_csr(37, 53, 0.2, dtype=dtype)
    f = sparsetune.spmm(A, n, layout=layout, tune=False)
    B = operand(53, n, dtype, layout)
    C = f(B)
    close(C, A, B, dtype)
    assert C.dtype == dtype and (C.flags.c_contiguous if layout == "row" else C.flags.f_contiguous)
    out = numpy.empty_like(C)
    assert f(B, out=out) is out
    assert (out == C).all()
    # Factors cost a pass of their own where the plan has none.
    start = numpy.ones_like(C)
    f(B, out=start, alpha=2.0, beta=-1.0)
    assert numpy.allclose(start, 2 * C - 1, rtol=1e-5)


def test_a_vector_is_a_product_with_one_column() -> None:
    A = random_csr(20, 30)
    f = sparsetune.spmm(A, 1, tune=False)
    b = operand(30, 1, "float32")[:, 0]
    assert f(b).shape == (20,)
    close(f(b), A, b, "float32")
    assert f(b[:, None]).shape == (20, 1)


def test_a_transposed_product_needs_no_other_matrix() -> None:
    A = random_csr(20, 30)
    f = sparsetune.spmm(A, 5, transpose=True, tune=False)
    B = operand(20, 5, "float32")
    close(f(B), A.T.tocsr(), B, "float32")
    assert f.shape == (30, 20) and f.digest == sparsetune.matrix(A).digest
    assert f.adjoint().shape == (20, 30) and f.adjoint().adjoint() is f


@pytest.mark.parametrize("layout", ["row", "col"])
def test_bfloat16_of_numpy_comes_by_ml_dtypes(layout: str) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    A = random_csr(37, 53, 0.2, dtype="float32")
    B = operand(53, 5, "float32", layout).astype(bfloat16)
    f = sparsetune.spmm(A, 5, dtype=bfloat16, layout=layout, tune=False)
    assert f.problem["dtype"] == "bf16"
    C = f(B)
    expected = A @ B.astype("float32")
    assert C.dtype == bfloat16
    assert numpy.allclose(C.astype("float32"), expected, rtol=1e-2, atol=1e-2)
    with pytest.raises(sparsetune.OperandError, match="bfloat16"):
        f(B.astype("float32"))
    wide = sparsetune.spmm(A, 5, dtype="bf16", layout=layout, output="f32", tune=False)
    assert wide(B).dtype == "float32" and numpy.allclose(wide(B), expected, rtol=1e-5, atol=1e-5)


def test_without_ml_dtypes_numpy_has_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    f = sparsetune.spmm(random_csr(7, 5, 0.5, dtype="float32"), 2, dtype="bf16", tune=False)
    with pytest.raises(sparsetune.OperandError, match="ml_dtypes"):
        f(operand(5, 2, "float32"))


@pytest.mark.parametrize("layout", ["row", "col"])
def test_a_product_in_half_precision_may_have_a_wider_result(layout: str) -> None:
    A = random_csr(37, 53, 0.2, dtype="float32")
    B = operand(53, 5, "float16", layout)
    f = sparsetune.spmm(A, 5, dtype="f16", layout=layout, output="f32", tune=False)
    assert f.problem["output"] == "f32" and f.adjoint().problem["output"] == "f32"
    C = f(B)
    assert C.dtype == "float32" and numpy.allclose(C, A.astype("float32") @ B.astype("float32"))
    out = numpy.zeros_like(C)
    assert (f(B, out=out) == C).all()
    with pytest.raises(sparsetune.OperandError, match="float32"):
        f(B, out=out.astype("float16"))
    narrow = sparsetune.spmm(A, 5, dtype="f16", layout=layout, output="f16", tune=False)
    assert "output" not in narrow.problem and narrow(B).dtype == "float16"
    with pytest.raises(sparsetune.OperandError, match="not of f32"):
        sparsetune.spmm(A, 5, dtype="f64", output="f32", tune=False)


@pytest.mark.parametrize("format", ["csr", "csc", "coo"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_tuned_product(tmp_path: Path, format: str, dtype: str) -> None:
    A = random_csr(300, 200, 0.05, dtype=dtype)
    f = sparsetune.spmm(A.asformat(format), n=17, wait=True, search=QUICK)
    assert f.tuned and f.promise is not None and f.promise.median_us is not None
    assert f.promise.clock == "pipelined" and set(f.promise.clocks) >= {"pipelined"}
    assert f.promise.clocks["pipelined"]["median_us"] == f.promise.median_us
    B = operand(200, 17, dtype)
    close(f(B), A, B, dtype)
    # The bundle is kept, so the next operator is tuned at once.
    again = sparsetune.spmm(A, n=17, tune=False)
    assert again.tuned
    assert (again(B) == f(B)).all()
    plan = sparsetune.load(next((tmp_path / "cache" / "bundles").rglob("*.stplan")))
    assert plan.check().passed and (plan(B) == f(B)).all()
    assert plan.manifest["matrix"]["digest"] == f.digest and plan.device == "cpu"


def test_accumulate() -> None:
    A = random_csr(100, 80)
    f = sparsetune.spmm(A, n=8, accumulate=True, wait=True, search=QUICK)
    B, C = operand(80, 8, "float32"), operand(100, 8, "float32", seed=8)
    expected = 3.0 * (A @ B) - 0.5 * C
    f(B, out=C, alpha=3.0, beta=-0.5)
    assert numpy.allclose(C, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(sparsetune.OperandError, match="`out` must be given"):
        f(B, beta=1.0)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
def test_solves(lower: bool, unit: bool, transpose: bool) -> None:
    T = triangle(60, lower)
    f = sparsetune.sptrsv(T, lower=lower, unit_diagonal=unit, transpose=transpose, tune=False)
    b = operand(60, 1, "float64")[:, 0]
    full = T.toarray()
    if unit:
        numpy.fill_diagonal(full, 1.0)
    exact = numpy.linalg.solve(full.T if transpose else full, b)
    assert numpy.allclose(f(b), exact, rtol=1e-10, atol=1e-10)


def test_a_tuned_solve_with_several_sides() -> None:
    T = triangle(150)
    f = sparsetune.sptrsv(T, rhs=3, wait=True, search=HALVING)
    b = operand(150, 3, "float64")
    assert f.tuned and numpy.allclose(T @ f(b), b, rtol=1e-10, atol=1e-10)


def test_a_miss_runs_untuned_says_so_once_and_switches(caplog: pytest.LogCaptureFixture) -> None:
    A = random_csr(200, 200, 0.05)
    B = operand(200, 9, "float32")
    with caplog.at_level(logging.WARNING, "sparsetune"):
        f = sparsetune.spmm(A, n=9, search=QUICK)
        first = f(B)
        f(B)
        f.wait(60)
    said = [record.message for record in caplog.records]
    assert len(said) <= 1 and all("until it is" in text for text in said)
    assert f.tuned and "tuned" in repr(f)
    close(first, A, B, "float32")
    close(f(B), A, B, "float32")


def test_without_tuning_a_miss_is_said(caplog: pytest.LogCaptureFixture) -> None:
    A = random_csr(20, 20)
    f = sparsetune.spmm(A, n=4, tune=False, wait=False)
    f._finder.done.wait(10)
    f(operand(20, 4, "float32"))
    assert "cannot be had" in caplog.text and f.error is not None
    with pytest.raises(sparsetune.Error, match="No plan is kept on disk"):
        f.wait(10)


def test_what_a_cpu_does_not_tune_is_scipys(caplog: pytest.LogCaptureFixture) -> None:
    A = random_csr(20, 20)
    f = sparsetune.spmm(A, n=4, dtype="float16")
    B = operand(20, 4, "float16")
    assert numpy.allclose(f(B), A @ B.astype("float32"), rtol=1e-2, atol=1e-2)
    assert "SciPy multiplies" in caplog.text and f(B).dtype == "float16"
    with pytest.raises(sparsetune.OperandError, match="f16 is for GPUs"):
        f.wait()


@pytest.mark.parametrize("tuned", [False, True])
def test_new_values(tuned: bool) -> None:
    A = random_csr(120, 90, 0.1).tocoo()
    order = numpy.random.default_rng(1).permutation(A.nnz)
    shuffled = scipy.sparse.coo_matrix((A.data[order], (A.row[order], A.col[order])), A.shape)
    f = sparsetune.spmm(shuffled, n=6, tune=tuned, wait=tuned, search=QUICK)
    B = operand(90, 6, "float32")
    f(B)
    other = shuffled.copy()
    other.data = numpy.random.default_rng(2).standard_normal(A.nnz).astype("float32")
    f.update_values(other.data)
    close(f(B), other.tocsr(), B, "float32")
    f.update_values(shuffled.tocsr())
    close(f(B), A.tocsr(), B, "float32")
    with pytest.raises(sparsetune.OperandError, match="There are 3 values"):
        f.update_values(other.data[:3])
    with pytest.raises(sparsetune.WrongPattern):
        f.update_values(random_csr(120, 90, 0.2, seed=5))


def test_a_plan_for_the_same_pattern_gets_the_values_of_this_matrix() -> None:
    A = random_csr(120, 90, 0.1)
    B = operand(90, 6, "float32")
    for factor in (1, 2, 3):
        f = sparsetune.spmm(A * factor, n=6, wait=True, search=QUICK)
        close(f(B), A * factor, B, "float32")


def test_values_that_change_before_the_plan_is_there() -> None:
    A = random_csr(150, 150, 0.1)
    f = sparsetune.spmm(A, n=5, search=QUICK)
    f.update_values(A.data * 2)
    f.wait(60)
    B = operand(150, 5, "float32")
    close(f(B), A * 2, B, "float32")


def test_values_of_a_solve() -> None:
    T = triangle(80)
    f = sparsetune.sptrsv(T, wait=True, search=HALVING)
    b = operand(80, 1, "float64")[:, 0]
    f.update_values(T * 2)
    assert numpy.allclose(T @ f(b), b / 2, rtol=1e-10, atol=1e-10)


def test_a_bundle_of_another_matrix(tmp_path: Path) -> None:
    A, other = random_csr(100, 100, seed=1), random_csr(100, 100, seed=2)
    sparsetune.spmm(A, n=4, wait=True, search=QUICK)
    bundle = str(next((tmp_path / "cache" / "bundles").rglob("*.stplan")))
    f = sparsetune.spmm(other, n=4, tune=False)
    with pytest.raises(sparsetune.WrongPattern, match="another pattern"):
        f.use(bundle)
    with pytest.raises(sparsetune.OperandError, match="problem"):
        sparsetune.spmm(A, n=5, tune=False).use(bundle)
    scaled = sparsetune.spmm(A * 3, n=4, tune=False)
    scaled.use(bundle)
    B = operand(100, 4, "float32")
    assert scaled.tuned
    close(scaled(B), A * 3, B, "float32")
    with pytest.raises(sparsetune.WrongDevice):
        sparsetune.load(bundle, "cuda:0")


def test_damaged_and_stale_bundles_are_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = random_csr(100, 100)
    sparsetune.spmm(A, n=4, wait=True, search=QUICK)
    bundle = next((tmp_path / "cache" / "bundles").rglob("*.stplan"))
    whole_file = bundle.read_bytes()
    arrays = zipfile.ZipFile(bundle).read("arrays.safetensors")
    place = whole_file.index(arrays) + len(arrays) - 1
    flipped = bytearray(whole_file)
    flipped[place] ^= 1
    bundle.write_bytes(flipped[:-9])
    with pytest.raises(sparsetune.BundleError, match="not a bundle"):
        sparsetune.load(bundle)
    bundle.write_bytes(flipped)
    with pytest.raises(sparsetune.BundleError, match="damaged"):
        sparsetune.load(bundle)
    assert sparsetune.spmm(A, n=4, wait=True, search=QUICK).tuned
    assert "is made again" in caplog.text
    whole, stale = _finder.Finder._load, [True]

    def load(finder: _finder.Finder) -> sparsetune.Plan:
        if stale and stale.pop():
            raise sparsetune.StalePlan("The plan is stale.")
        return whole(finder)

    monkeypatch.setattr(_finder.Finder, "_load", load)
    assert sparsetune.spmm(A, n=4, wait=True, search=QUICK).tuned and not stale


@pytest.mark.parametrize("tuned", [False, True])
def test_operands_that_are_refused(tuned: bool) -> None:
    A = random_csr(40, 30)
    f = sparsetune.spmm(A, n=4, tune=tuned, wait=tuned, search=QUICK)
    B = operand(30, 4, "float32")
    unaligned = numpy.ndarray((30, 4), "float32", bytearray(30 * 4 * 4 + 1), offset=1)
    swapped = B.astype(B.dtype.newbyteorder())
    for bad, why in [
        (B[:, :3], r"30 x 4 elements of float32.*\[30, 3\]|30 x 4.*\(30, 3\)"),
        (B.astype("float64"), "f8|float64"),
        (numpy.asfortranarray(B), "strided"),
        (operand(30, 8, "float32")[:, ::2], "strided"),
        (B.tolist(), "list"),
        (unaligned, "multiple of 4 bytes"),
        (swapped, "30 x 4"),
    ]:
        with pytest.raises(sparsetune.OperandError, match=why):
            f(bad)
    out = numpy.empty((40, 4), "float32")
    out.flags.writeable = False
    with pytest.raises(sparsetune.OperandError, match="writable"):
        f(B, out=out)
    with pytest.raises(sparsetune.OperandError, match="40 x 4"):
        f(B, out=numpy.empty((4, 40), "float32"))
    square = sparsetune.spmm(random_csr(30, 30), n=4, tune=False)
    with pytest.raises(sparsetune.OperandError, match="overlap"):
        square(B, out=B)
    with pytest.raises(sparsetune.OperandError, match="`out` must be given"):
        f(B, beta=2.0)
    with pytest.raises(sparsetune.OperandError, match="move it to cuda:0"):
        sparsetune.spmm(A, n=4, device="cuda:0")


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("library", ["scipy", "torch"])
def test_the_libraries_own_solves(lower: bool, unit: bool, transpose: bool, library: str) -> None:
    """What runs on a GPU until there is a plan, here on the CPU."""
    T = triangle(40, lower)
    full = T.toarray()
    if unit:
        numpy.fill_diagonal(full, 1.0)
    b = operand(40, 2, "float64")
    expected = numpy.linalg.solve(full.T if transpose else full, b)
    problem = sptrsv_problem("f64", lower=lower, unit_diagonal=unit, transpose=transpose, rhs=2)
    if library == "torch":
        torch = pytest.importorskip("torch")
        source = source_of(torch.from_numpy(T.toarray()).to_sparse_csr())
        run = _fallback._Library(source, source.matrix(), problem).runner(torch.from_numpy(b))
        found = run(torch.from_numpy(b), None).numpy()
    else:
        source = source_of(T)
        found = _fallback._Library(source, source.matrix(), problem).runner(b)(b, None)
    assert numpy.allclose(found, expected, rtol=1e-10, atol=1e-10)


def test_calls_from_several_threads() -> None:
    A = random_csr(400, 300, 0.1)
    f = sparsetune.spmm(A, n=numpy.int64(16), wait=True, search=QUICK)
    operands = [operand(300, 16, "float32", seed=seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        for B, C in zip(operands * 4, pool.map(f, operands * 4)):
            close(C, A, B, "float32")


def test_what_cannot_be_solved() -> None:
    with pytest.raises(sparsetune.Error, match="square"):
        sparsetune.sptrsv(random_csr(5, 6, dtype="float64"), tune=False)(numpy.ones(5))
    with pytest.raises(sparsetune.Error, match="diagonal"):
        sparsetune.sptrsv(scipy.sparse.csr_matrix((4, 4)), tune=False)(numpy.ones(4))


def poisson(n: int) -> scipy.sparse.csr_matrix:
    one = scipy.sparse.diags([-1.0, 2.0, -1.0], [-1, 0, 1], (n, n))
    return scipy.sparse.kronsum(one, one).tocsr()


def test_scipys_solvers() -> None:
    A = poisson(20)
    operator = sparsetune.linear_operator(A, tune=False)
    b = numpy.ones(400)
    assert operator.dtype == "float64"
    for solver in (scipy.sparse.linalg.cg, scipy.sparse.linalg.gmres):
        x, failed = solver(operator, b, rtol=1e-10)
        assert not failed and numpy.linalg.norm(A @ x - b) < 1e-7
    # Symmetric Gauss-Seidel: L D^-1 L^T, split as (L D^-1/2) (L D^-1/2)^T.
    L = scipy.sparse.tril(A) @ scipy.sparse.diags(A.diagonal() ** -0.5)
    M = sparsetune.preconditioner(L.tocsr(), wait=True, search=HALVING)
    steps: list[int] = []
    plain: list[int] = []
    scipy.sparse.linalg.cg(A, b, rtol=1e-10, callback=lambda _: plain.append(1))
    x, failed = scipy.sparse.linalg.cg(
        operator, b, rtol=1e-10, M=M, callback=lambda _: steps.append(1)
    )
    assert not failed and len(steps) < len(plain) and numpy.linalg.norm(A @ x - b) < 1e-7
    rectangular = sparsetune.linear_operator(random_csr(30, 20, dtype="float64"), tune=False)
    x = scipy.sparse.linalg.lsqr(rectangular, numpy.ones(30))[0]
    assert x.shape == (20,)


def test_a_program_that_ends_while_tuning_ends_cleanly(tmp_path: Path) -> None:
    code = (
        "import scipy.sparse, numpy, sparsetune\n"
        "A = scipy.sparse.random(2000, 2000, 0.01, 'csr', 'float32', random_state=0)\n"
        "f = sparsetune.spmm(A, n=64)\n"
        "print(f(numpy.ones((2000, 64), 'float32')).shape)\n"
    )
    environment = {**os.environ, "SPARSETUNE_CACHE": str(tmp_path / "other")}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (0, "(2000, 64)\n"), ended.stderr
