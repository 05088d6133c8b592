"""Conjugate gradients with an incomplete factorisation, in SciPy (CPU) or CuPy (GPU).

    python pcg.py [MATRIX] [--device cuda] [--grid 64] [--json]

MATRIX is a symmetric positive definite Matrix Market file; without it, Poisson's equation on a
cube. The preconditioner is ILU(0): L and U have the pattern of A and L U agrees with A on it. The
same solver runs with the library's own triangular solves (SciPy's `spsolve_triangular`, or on a GPU
cuSPARSE through CuPy) and with sparsetune's; the iterations must be equal.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import numpy
import scipy.io
import scipy.sparse
import scipy.sparse.linalg

import sparsetune


def poisson(n: int) -> scipy.sparse.csr_matrix:
    """Seven points on an n^3 grid, with coefficients that jump, so that the solver has something to
    do."""
    one = scipy.sparse.diags([-1.0, 2.0, -1.0], [-1, 0, 1], (n, n))
    eye = scipy.sparse.eye(n)
    A = scipy.sparse.kron(scipy.sparse.kron(one, eye), eye) * 100.0
    A = A + scipy.sparse.kron(scipy.sparse.kron(eye, one), eye) * 10.0
    return (A + scipy.sparse.kron(scipy.sparse.kron(eye, eye), one)).tocsr()


def levels_of(A: scipy.sparse.csr_matrix) -> Any:
    """The level of each row in the elimination: one above the highest row to its left that it has
    an entry in."""
    level = numpy.zeros(A.shape[0], numpy.int64)
    pointers, columns = A.indptr.tolist(), A.indices.tolist()
    for row in range(A.shape[0]):
        highest = -1
        for at in range(pointers[row], pointers[row + 1]):
            if columns[at] >= row:
                break
            highest = max(highest, level[columns[at]])
        level[row] = highest + 1
    return level


def ilu0(A: scipy.sparse.csr_matrix) -> Tuple[scipy.sparse.csr_matrix, scipy.sparse.csr_matrix]:
    """ILU(0): L (unit diagonal, not stored) and U on A's own pattern.

    Row by row, `a_ik /= a_kk` and `a_ij -= a_ik a_kj` wherever a_ij is in the pattern. All entries
    of a wavefront (rows of one level, at the same place from the left) are eliminated by one step
    of NumPy.
    """
    A = A.tocsr().astype("float64")
    A.sum_duplicates()
    rows, size = A.shape[0], A.shape[0]
    pointers, columns, values = (
        A.indptr.astype(numpy.int64),
        A.indices.astype(numpy.int64),
        A.data.copy(),
    )
    row_of = numpy.repeat(numpy.arange(rows), numpy.diff(pointers))
    keys = row_of * size + columns
    diagonal = numpy.flatnonzero(row_of == columns)
    if len(diagonal) != rows:
        raise SystemExit("the matrix has a row without a diagonal entry: it has no ILU(0)")
    level = levels_of(A)
    left = diagonal - pointers[:-1]
    for stage in range(int(level.max()) + 1):
        members = numpy.flatnonzero(level == stage)
        for place in range(int(left[members].max(initial=0))):
            active = members[left[members] > place]
            entry = pointers[active] + place
            pivot = columns[entry]
            values[entry] /= values[diagonal[pivot]]
            # The entries right of the pivot row's diagonal, one after the other for all active rows
            # at once.
            count = pointers[pivot + 1] - diagonal[pivot] - 1
            first = numpy.repeat(diagonal[pivot] + 1, count)
            offset = numpy.arange(count.sum()) - numpy.repeat(numpy.cumsum(count) - count, count)
            source = first + offset
            wanted = numpy.repeat(active, count) * size + columns[source]
            target = numpy.searchsorted(keys, wanted)
            target[target == len(keys)] = 0
            hit = keys[target] == wanted
            factor = numpy.repeat(values[entry], count)
            values[target[hit]] -= factor[hit] * values[source[hit]]
    F = scipy.sparse.csr_matrix((values, A.indices, A.indptr), A.shape)
    return scipy.sparse.tril(F, -1).tocsr(), scipy.sparse.triu(F).tocsr()


def solve(
    cg: Callable[..., Any], A: Any, b: Any, M: Any, tolerance: float, done: Callable[[], None]
) -> Tuple[Any, int, float]:
    """The solution, the number of iterations and the seconds of the whole solve."""
    steps = [0]

    def count(_: Any) -> None:
        steps[0] += 1

    done()
    begun = time.perf_counter()
    x, failed = cg(A, b, M=M, maxiter=2000, callback=count, **tolerance_of(cg, tolerance))
    done()
    if failed:
        raise SystemExit(f"the solver has not converged after {steps[0]} iterations")
    return x, steps[0], time.perf_counter() - begun


def tolerance_of(cg: Callable[..., Any], tolerance: float) -> Dict[str, float]:
    """SciPy renamed the argument; CuPy has its old name."""
    import inspect

    names = inspect.signature(cg).parameters
    return {"rtol" if "rtol" in names else "tol": tolerance}


def run(arguments: argparse.Namespace) -> Dict[str, Any]:
    if arguments.matrix:
        A = scipy.sparse.csr_matrix(scipy.io.mmread(arguments.matrix)).astype("float64")
    else:
        A = poisson(arguments.grid)
    A.sort_indices()
    begun = time.perf_counter()
    L, U = ilu0(A)
    factored = time.perf_counter() - begun
    unit = (L + scipy.sparse.eye(A.shape[0])).tocsr()
    if arguments.check:
        error = abs(unit @ U - A)[A.nonzero()].max() / abs(A).max()
        if error > 1e-12:
            raise SystemExit(
                f"the factorisation is no ILU(0): L U differs from A on its pattern by {error:.1e}"
            )
    b = numpy.random.default_rng(1).standard_normal(A.shape[0])

    if arguments.device == "cpu":
        import scipy.sparse.linalg as linalg

        place: Callable[[Any], Any] = lambda part: part  # noqa: E731
        library, done = "SciPy", lambda: None
    else:
        import cupy
        import cupyx.scipy.sparse
        import cupyx.scipy.sparse.linalg as linalg

        def place(part: Any) -> Any:
            return cupy.asarray(part) if part.ndim == 1 else cupyx.scipy.sparse.csr_matrix(part)

        library, done = "cuSPARSE by CuPy", cupy.cuda.get_current_stream().synchronize
    A, L, U, unit, b = place(A), place(L), place(U), place(unit), place(b)

    triangular = linalg.spsolve_triangular
    theirs = linalg.LinearOperator(
        A.shape,
        matvec=lambda x: triangular(
            U, triangular(unit, x, lower=True, unit_diagonal=True), lower=False
        ),
        dtype=A.dtype,
    )
    begun = time.perf_counter()
    options = {} if arguments.seconds is None else {"search": {"seconds": arguments.seconds}}
    ours = sparsetune.preconditioner(L, U, unit_lower=True, wait=True, **options)
    first = time.perf_counter() - begun

    tolerance = arguments.tolerance
    results = {}
    for name, M in (("none", None), ("theirs", theirs), ("ours", ours)):
        # Once to warm up, then once to be timed.
        solve(linalg.cg, A, b, M, tolerance, done)
        results[name] = solve(linalg.cg, A, b, M, tolerance, done)
    residual = lambda x: float(abs(A @ x - b).max() / abs(b).max())  # noqa: E731
    saved = results["theirs"][2] - results["ours"][2]
    return {
        "rows": A.shape[0],
        "entries": A.nnz,
        "device": arguments.device,
        "library": library,
        "factorisation_s": factored,
        "plain_iterations": results["none"][1],
        "plain_s": results["none"][2],
        "library_iterations": results["theirs"][1],
        "library_s": results["theirs"][2],
        "sparsetune_iterations": results["ours"][1],
        "sparsetune_s": results["ours"][2],
        "speedup": results["theirs"][2] / results["ours"][2],
        "library_residual": residual(results["theirs"][0]),
        "sparsetune_residual": residual(results["ours"][0]),
        "first_call_s": first,
        "break_even_solves": None if saved <= 0 else int(numpy.ceil(first / saved)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("matrix", nargs="?", type=Path)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--grid", type=int, default=24, help="points of the cube in each direction")
    parser.add_argument("--tolerance", type=float, default=1e-8)
    parser.add_argument("--seconds", type=float, help="budget of each search")
    parser.add_argument(
        "--check", action="store_true", help="check that the factorisation is an ILU(0)"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = run(arguments)
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{found['rows']} unknowns, {found['entries']} entries, on {found['device']}\n")
    print(f"{'preconditioner':32}{'iterations':>12}{'solve, ms':>12}{'residual':>12}")
    for name, key in (
        ("none", "plain"),
        (f"ILU(0), {found['library']}", "library"),
        ("ILU(0), sparsetune", "sparsetune"),
    ):
        residual = found.get(f"{key}_residual")
        said = "" if residual is None else f"{residual:.1e}"
        print(
            f"{name:32}{found[key + '_iterations']:>12}{1e3 * found[key + '_s']:>12.1f}{said:>12}"
        )
    breaks = found["break_even_solves"]
    print(
        f"\nthe solve is {found['speedup']:.2f} times as fast; both plans were there after {found['first_call_s']:.1f} s, "
        + ("which is never recovered" if breaks is None else f"recovered after {breaks} solves")
    )


if __name__ == "__main__":
    main()
