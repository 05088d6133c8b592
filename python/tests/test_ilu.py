"""Combined factors: both triangles by one request, one call and one update, on the CPU."""

from __future__ import annotations

import warnings
from typing import Any

import numpy
import pytest
import scipy.sparse
import scipy.sparse.linalg

import sparsetune
from sparsetune import _fallback
from sparsetune._source import source_of
from conftest import random_csr
from test_operator import HALVING, operand, poisson


def ilu0(A: scipy.sparse.csr_matrix) -> scipy.sparse.csr_matrix:
    """The incomplete factors with A's pattern in one matrix: ones on the diagonal of L."""
    rows: list[dict[int, float]] = [
        dict(zip(A.indices[a:b].tolist(), A.data[a:b].tolist()))
        for a, b in zip(A.indptr, A.indptr[1:])
    ]
    for i, row in enumerate(rows):
        for k in sorted(k for k in row if k < i):
            row[k] /= rows[k][k]
            for j, value in rows[k].items():
                if j > k and j in row:
                    row[j] -= row[k] * value
    F = A.copy()
    # Each dictionary has its row's columns in their order.
    F.data[:] = [value for row in rows for value in row.values()]
    return F


def factors(F: Any, unit: bool, transpose: bool) -> tuple[Any, Any]:
    """Both factors as dense matrices, in the order of the solves."""
    dense = F.toarray()
    L, U = numpy.tril(dense, -1 if unit else 0), numpy.triu(dense)
    L = L + numpy.eye(len(L)) if unit else L
    return (U.T, L.T) if transpose else (L, U)


@pytest.mark.parametrize("rows", [1, 2, 47])
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("rhs", [1, 3])
def test_untuned_solves_with_combined_factors(
    rows: int, unit: bool, transpose: bool, rhs: int
) -> None:
    F = random_csr(rows, rows, 0.1, dtype="float64") * 0.1
    F.setdiag(numpy.arange(rows) % 5 + 2.0)
    F = F.tocsr()
    f = sparsetune.ilu(F, unit, transpose, rhs, tune=False)
    assert f.problem["triangle"] == "both" and f.shape == (rows, rows)
    B = operand(rows, rhs, "float64")
    library = _fallback._Library(source_of(F), sparsetune.matrix(F), f.problem)

    def right(found: Any, factored: Any) -> None:
        first, second = factors(factored, unit, transpose)
        exact = numpy.linalg.solve(second, numpy.linalg.solve(first, B))
        assert abs(found - exact).max() <= 1e-11 * max(1.0, abs(exact).max())

    right(f(B), F)
    right(library.runner(B)(B, None), F)
    right(f.adjoint().adjoint()(B), F)
    other = F.copy()
    other.data = other.data * 1.5 + 0.01
    f.update_values(other.data)
    right(f(B), other)


def test_consent_to_an_approximate_solve_is_of_the_problem() -> None:
    F = ilu0(poisson(7))
    near = sparsetune.ilu(F, approximate=True, wait=True, search=HALVING)
    exact = sparsetune.ilu(F, tune=False)
    # The plan of the one is not taken for the other, though both are exact on a processor.
    assert near.problem["approximate"] is True and "approximate" not in exact.problem
    assert near.tuned and not exact.tuned
    assert near.plan is not None and near.plan.check().passed
    assert near.plan.problem["approximate"] is True
    again = sparsetune.ilu(F, approximate=True, tune=False)
    assert again.tuned
    b = operand(49, 1, "float64")[:, 0]
    first, second = factors(F, True, False)
    expected = numpy.linalg.solve(second, numpy.linalg.solve(first, b))
    assert abs(again(b) - expected).max() < 1e-12
    again.update_values(ilu0((poisson(7) * 2).tocsr()))
    assert not numpy.allclose(again(b), expected)


def test_an_approximate_operator_waits_for_its_plan() -> None:
    F = ilu0(poisson(6))
    T = scipy.sparse.tril(F).tocsr()
    for make in (
        lambda **how: sparsetune.ilu(F, approximate=True, search=HALVING, **how),
        lambda **how: sparsetune.sptrsv(T, approximate=True, search=HALVING, **how),
        lambda **how: sparsetune.preconditioner(
            F, combined=True, approximate=True, search=HALVING, **how
        ),
    ):
        with pytest.raises(sparsetune.OperandError, match="waits for its plan"):
            make(wait=False)
        with pytest.raises(sparsetune.Error):
            make(tune=False)
    f = sparsetune.sptrsv(T, approximate=True, search=HALVING)
    assert f.tuned and f.adjoint().tuned
    # Exact operators need not wait.
    assert not sparsetune.sptrsv(T, tune=False, wait=False).tuned


def test_new_values_of_an_approximate_plan_are_warned_of_once() -> None:
    F = ilu0(poisson(6))
    f = sparsetune.ilu(F, approximate=True, search=HALVING)
    plan = f.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f.update_values(F * 2)
        assert not plan.approximate
    # Processors have neither sweeps nor inverses: as if the second solve had some.
    for family in ("inverse", "sweeps"):
        del plan.__dict__["approximate"]
        plan.manifest["parts"][1]["candidate"]["family"] = family
        assert plan.approximate
    with pytest.warns(RuntimeWarning, match="its error is not known"):
        f.update_values(F * 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f.update_values(F)
    b = operand(36, 1, "float64")[:, 0]
    first, second = factors(F, True, False)
    exact = numpy.linalg.solve(second, numpy.linalg.solve(first, b))
    assert abs(f(b) - exact).max() < 1e-12


def test_a_zero_pivot_is_named() -> None:
    F = scipy.sparse.csr_matrix(numpy.array([[2.0, 1.0], [0.5, 0.0]]))
    with pytest.raises(sparsetune.OperandError, match="among them \\[1\\]"):
        sparsetune.ilu(F, tune=False)(numpy.ones(2))


def test_ilu_as_a_preconditioner_by_one_call() -> None:
    A = poisson(16) + scipy.sparse.diags([0.3], [1], (256, 256))
    A = A.tocsr()
    A.sort_indices()
    F, b = ilu0(A), numpy.ones(256)
    M = sparsetune.preconditioner(F, combined=True, wait=True, search=HALVING)
    (both,) = M.factors
    plan = both.wait()
    assert plan.check().passed and plan.manifest["format"] == "sparsetune pair"
    parts = plan.manifest["parts"]
    assert [part["problem"]["triangle"] for part in parts] == ["lower", "upper"]
    measured = [part["promise"]["median_us"] for part in parts]
    assert plan.promise.median_us == pytest.approx(sum(measured))
    first, second = factors(F, True, False)
    exact = numpy.linalg.solve(second, numpy.linalg.solve(first, b))
    assert abs(M @ b - exact).max() < 1e-11
    first, second = factors(F, True, True)
    exact = numpy.linalg.solve(second, numpy.linalg.solve(first, b))
    assert abs(M.H @ b - exact).max() < 1e-11
    plain: list[int] = []
    steps: list[int] = []
    gmres = scipy.sparse.linalg.gmres
    gmres(A, b, rtol=1e-9, callback=lambda _: plain.append(1), callback_type="pr_norm")
    x, failed = gmres(
        A, b, rtol=1e-9, M=M, callback=lambda _: steps.append(1), callback_type="pr_norm"
    )
    assert not failed and len(steps) < len(plain) and numpy.linalg.norm(A @ x - b) < 1e-6
    # A time step later: other values of the same pattern, for both by one call.
    later = ilu0((A + 2 * scipy.sparse.diags(A.diagonal())).tocsr())
    both.update_values(later)
    first, second = factors(later, True, False)
    exact = numpy.linalg.solve(second, numpy.linalg.solve(first, b))
    assert abs(M @ b - exact).max() < 1e-11
    # The next process finds both on the disk, in one file.
    again = sparsetune.ilu(F, tune=False)
    assert again.tuned and again.plan is not None and again.plan.check().passed
    with pytest.raises(sparsetune.OperandError, match="Combined factors are one matrix"):
        sparsetune.preconditioner(F, F, combined=True)
