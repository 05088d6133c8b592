#!/usr/bin/env python3
"""What approximate triangular solves cost in iterations, and what they save in time: as CSV, a line for each system.

    scripts/iterations.py [--device cuda] [--grid 200] [--only NAME] [MATRIX.mtx ...] > iterations.csv

Each system gets an incomplete LU factorisation with its own pattern, ILU(0), which is incomplete Cholesky where the system is symmetric.
Both solves with the factors are tuned twice by the Python package, exactly and with `approximate`, and a solver runs with each:
conjugate gradients for symmetric systems, in their flexible form and (`plain_iterations`) in the usual one, and GMRES (30) for others.
For conjugate gradients both solves have to be alike: the same sweeps of whole systems, approximate inverses of the same power and steps, or
exact. Where they are not, or have no plan, the columns of the run are empty. MATRIX is a Matrix Market file; without one there are Poisson's equation on a square and on a cube, the mesh of
data/, and a current that makes both grids unsymmetric.

Times of a solver are of its second run, `call_us` is the plans' time of a call of both solves, and `left_of_b` is measured for a
right-hand side at random: the largest element of L U x - b beside the largest of b. Where approximate plans have exact kernels, as on a
processor, both runs are alike. A solver that has not converged after 2000 iterations has none. Needs NumPy and SciPy, and CuPy for
`--device cuda`.
"""

import argparse
import csv
import gzip
import importlib.util
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy
import scipy.io
import scipy.sparse

import sparsetune

ROOT = Path(__file__).resolve().parents[1]
MOST = 2000
RESTART = 30
MEASURED = "iterations plain_iterations solver_s call_us left_of_b lower upper".split()
COLUMNS = ["system", "rows", "nnz", "symmetric", "levels", "solver", "device"]


def example():
    """ILU(0) and its levels are those of the example."""
    spec = importlib.util.spec_from_file_location("pcg", ROOT / "python" / "examples" / "pcg.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def line(n, wind=0.0):
    return scipy.sparse.diags([-1.0 - wind, 2.0, -1.0 + wind], [-1, 0, 1], (n, n))


def square(n, wind=0.0):
    eye = scipy.sparse.eye(n)
    return scipy.sparse.kron(line(n, wind), eye) + scipy.sparse.kron(eye, line(n, wind))


def cube(n, wind=0.0):
    eye = scipy.sparse.eye(n)
    return scipy.sparse.kron(square(n, wind), eye) + scipy.sparse.kron(scipy.sparse.eye(n * n), line(n, wind))


def mesh():
    """The Laplacian of a triangulation of random points, with a little of the identity, which makes it definite."""
    with gzip.open(ROOT / "data" / "delaunay_n15.mtx.gz") as file:
        edges = scipy.sparse.csr_matrix(scipy.io.mmread(file)).astype("float64")
    edges.data[:] = 1.0
    return scipy.sparse.diags(numpy.asarray(edges.sum(axis=1)).ravel() + 0.01) - edges


def systems(grid):
    n, side = grid, max(3, round(grid ** (2 / 3)))
    yield f"poisson square {n}", lambda: square(n)
    yield f"poisson cube {side}", lambda: cube(side)
    yield "mesh delaunay_n15", mesh
    yield f"current square {n}", lambda: square(n, 0.4)
    yield f"current cube {side}", lambda: cube(side, 0.4)


def conjugate_gradients(xp, A, b, M, tolerance, flexible=True):
    """Flexible is their form by Golub and Ye (SIAM J. Sci. Comput. 1999), which suffers less from a map that is not quite symmetric."""
    x, r, p = xp.zeros_like(b), b.copy(), None
    wanted = tolerance * norm(b)
    for step in range(1, MOST + 1):
        z = M(r)
        # z . before is 0 if M is symmetric.
        p = z.copy() if p is None else z + float(z @ (r - before if flexible else r)) / zr * p
        zr, before = float(z @ r), r.copy()
        Ap = A @ p
        length = zr / float(p @ Ap)
        x += length * p
        r -= length * Ap
        if norm(r) <= wanted:
            return x, step
    return x, None


def gmres(xp, A, b, M, tolerance):
    """Restarted, preconditioned from the right, with two passes of classical Gram-Schmidt."""
    on_host = getattr(xp, "asnumpy", numpy.asarray)
    V = xp.zeros((RESTART + 1, b.size))
    x, step, wanted = xp.zeros_like(b), 0, tolerance * norm(b)
    while step < MOST:
        r = b - A @ x
        beta = norm(r)
        if beta <= wanted:
            return x, step
        H = numpy.zeros((RESTART + 1, RESTART))
        V[0] = r / beta
        for j in range(RESTART):
            w = A @ M(V[j])
            for _ in range(2):
                share = V[: j + 1] @ w
                w = w - share @ V[: j + 1]
                H[: j + 1, j] += on_host(share)
            H[j + 1, j] = norm(w)
            step += 1
            right = numpy.zeros(j + 2)
            right[0] = beta
            y = numpy.linalg.lstsq(H[: j + 2, : j + 1], right, rcond=None)[0]
            near = numpy.linalg.norm(H[: j + 2, : j + 1] @ y - right) <= wanted
            if near or H[j + 1, j] == 0.0 or step == MOST:
                break
            V[j + 1] = w / H[j + 1, j]
        x = x + M(xp.asarray(y) @ V[: j + 1])
    return x, step if norm(b - A @ x) <= wanted else None


def norm(x):
    return float(x @ x) ** 0.5


def measured(xp, parts, F, A, b, solver, approximate, arguments):
    """Tunes both solves with the factors in F, and runs the solver with them."""
    search = {"seconds": arguments.seconds} if arguments.seconds else {}
    nothing = [""] * len(MEASURED)
    try:
        factors = tuned_anew(F, approximate, search)
    except sparsetune.Error as error:
        print(f"no plan: {error}", file=sys.stderr)
        return nothing
    parts_of_plan = [part["candidate"] for part in factors.plan.manifest["parts"]]
    if solver is conjugate_gradients and not alike(*parts_of_plan):
        # What they make of b would not be symmetric.
        print(f"not run, since both solves differ: {parts_of_plan}", file=sys.stderr)
        return nothing
    # A part of a larger array need not begin where plans can read: a copy does.
    M = lambda r: factors(r.copy())
    done = (lambda: None) if xp is numpy else xp.cuda.get_current_stream().synchronize
    for _ in range(2):
        done()
        begun = time.perf_counter()
        steps = solver(xp, A, b, M, arguments.tolerance)[1]
        done()
        took = time.perf_counter() - begun
    tried = xp.asarray(numpy.random.default_rng(2).uniform(-1, 1, b.size))
    L, U = parts
    left = float(abs(L @ (U @ M(tried)) - tried).max() / abs(tried).max())
    plain = None
    if solver is conjugate_gradients:
        plain = solver(xp, A, b, M, arguments.tolerance, flexible=False)[1]
    kernels = [candidate_text(candidate) for candidate in parts_of_plan]
    us = factors.promise.median_us
    # A solver that has not converged has no number of iterations.
    counts = ["" if steps is None else steps, "" if plain is None else plain]
    return [*counts, f"{took:.4g}", "" if us is None else f"{us:.4g}", f"{left:.3g}", *kernels]


def tuned_anew(F, approximate, search):
    return tuned_alone(lambda: sparsetune.ilu(F, approximate=approximate, wait=True, search=search or None))


def tuned_alone(tune):
    """A plan that is kept on disk would be taken, whatever is asked of the search."""
    before = os.environ.get("SPARSETUNE_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SPARSETUNE_CACHE"] = folder
        try:
            return tune()
        finally:
            if before is None:
                del os.environ["SPARSETUNE_CACHE"]
            else:
                os.environ["SPARSETUNE_CACHE"] = before


def alike(first, second):
    """Whether two solves make a symmetric map of b, if their factors do. Blocks of the two triangles begin at different ends, so that
    those of one are not the other's: sweeps are to be of whole systems."""
    names = {"sweeps": ["sweeps", "inner"], "inverse": ["power", "steps"]}
    made = [[it["family"], *(it["params"].get(name) for name in names[it["family"]])] if it["family"] in names else None
            for it in (first, second)]
    return made[0] == made[1] and (made[0] is None or made[0][0] != "sweeps" or made[0][2] == 1)


def candidate_text(candidate):
    values = candidate.get("params", {})
    return candidate["family"] + "".join(f" {name}={values[name]}" for name in sorted(values))


def arrays(device):
    """NumPy or CuPy, and what puts a matrix or a vector there."""
    if device == "cpu":
        return numpy, lambda part: part
    import cupy
    import cupyx.scipy.sparse

    return cupy, lambda part: cupy.asarray(part) if part.ndim == 1 else cupyx.scipy.sparse.csr_matrix(part)


def row_of(name, A, pcg, arguments):
    A = scipy.sparse.csr_matrix(A).astype("float64")
    A.sort_indices()
    symmetric = abs(A - A.T).max() == 0.0
    levels = int(pcg.levels_of(A).max()) + 1
    lower, upper = pcg.ilu0(A)
    L = (lower + scipy.sparse.eye(A.shape[0])).tocsr()
    b = numpy.random.default_rng(1).standard_normal(A.shape[0])
    xp, place = arrays(arguments.device)
    on_device = [place(part) for part in ((lower + upper).tocsr(), A, b)]
    parts = place(L), place(upper)
    solver = conjugate_gradients if symmetric else gmres
    said = [name, *A.shape[:1], A.nnz, "yes" if symmetric else "no", levels, solver.__name__, arguments.device]
    for approximate in (False, True):
        said += measured(xp, parts, *on_device, solver, approximate, arguments)
    return said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("matrix", nargs="*", type=Path)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--grid", type=int, default=200, help="points of the square in each direction")
    parser.add_argument("--only", help="systems whose names have this in them")
    parser.add_argument("--tolerance", type=float, default=1e-8, help="of the residual, beside that of x = 0")
    parser.add_argument("--seconds", type=float, help="budget of each search")
    arguments = parser.parse_args()
    pcg = example()
    files = [(path.name, lambda path=path: scipy.io.mmread(path)) for path in arguments.matrix]
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow([*COLUMNS, *(f"{how}_{what}" for how in ("exact", "approximate") for what in MEASURED)])
    for name, make in files or systems(arguments.grid):
        if not arguments.only or arguments.only in name:
            out.writerow(row_of(name, make(), pcg, arguments))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
