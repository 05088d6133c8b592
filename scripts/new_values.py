#!/usr/bin/env python3
"""What new values of the same pattern cost a triangular solve, beside cuSPARSE's `cusparseSpSV_updateMatrix`: as CSV, a line a plan.

    scripts/new_values.py [--cusparse libcusparse.so.12] [--grid 200] [MATRIX.mtx ...] > new_values.csv

Each system is the lower factor of an incomplete factorisation with its own pattern, ILU(0): of Poisson's equation on a square and on a cube,
or of the given Matrix Market files. It is tuned twice, as it comes (equations may be rewritten, and new values are then computed on the host
from all of them) and with `stability="row_wise"` (nothing is). Times are medians of 20 calls in microseconds, from the call to the end of
its work on the device. New values are on the device for both; `in_place` says whether the plan takes them there, and `error` is the largest
backward error of a row of a solve with them. Name a library whose folder is not searched. Needs NumPy, SciPy and CuPy.
"""

import argparse
import csv
import ctypes
import sys
import time
from pathlib import Path

import cupy
import cupyx.scipy.sparse
import numpy
import scipy.io
import scipy.sparse
from iterations import candidate_text, cube, example, square, tuned_alone

import sparsetune

R_64F, INDEX_32I, BASE_ZERO, FILL_LOWER, DIAGONAL_NON_UNIT = 1, 2, 0, 0, 0
FILL_MODE, DIAGONAL_TYPE, GENERAL = 0, 1, 0
ROUNDS = 20
COLUMNS = "system rows nnz stability candidate in_place us solve_us default_us default_solve_us alg2_us alg2_solve_us error".split()
# SPSV_ALG2 came with 12.9.
ALGORITHMS = (0, 2)


def median_us(action):
    times = []
    for _ in range(ROUNDS):
        cupy.cuda.get_current_stream().synchronize()
        begun = time.perf_counter()
        action()
        cupy.cuda.get_current_stream().synchronize()
        times.append((time.perf_counter() - begun) * 1e6)
    return sorted(times)[ROUNDS // 2]


class Vendor:
    """A solve by SpSV with one of its algorithms: 0 is the default, 1 and 2 the others."""

    def __init__(self, library, L, algorithm):
        self.library, self.algorithm = library, ctypes.c_int(algorithm)
        self.handle, self.matrix, self.solve_of = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.arrays = [cupy.asarray(part) for part in (L.indptr, L.indices, L.data)]
        rows = L.shape[0]
        self.b, self.x = cupy.ones(rows), cupy.zeros(rows)
        self.call("cusparseCreate", ctypes.byref(self.handle))
        pointers = [ctypes.c_void_p(array.data.ptr) for array in self.arrays]
        size = ctypes.c_int64
        self.call(
            "cusparseCreateCsr", ctypes.byref(self.matrix), size(rows), size(rows), size(L.nnz), *pointers, INDEX_32I, INDEX_32I, BASE_ZERO, R_64F
        )
        for attribute, value in ((FILL_MODE, FILL_LOWER), (DIAGONAL_TYPE, DIAGONAL_NON_UNIT)):
            set_to = ctypes.c_int(value)
            self.call("cusparseSpMatSetAttribute", self.matrix, attribute, ctypes.byref(set_to), size(4))
        self.vectors = []
        for array in (self.b, self.x):
            vector = ctypes.c_void_p()
            self.call("cusparseCreateDnVec", ctypes.byref(vector), size(rows), ctypes.c_void_p(array.data.ptr), R_64F)
            self.vectors.append(vector)
        self.call("cusparseSpSV_createDescr", ctypes.byref(self.solve_of))
        one, needed = ctypes.c_double(1.0), ctypes.c_size_t()
        self.operands = [self.handle, 0, ctypes.byref(one), self.matrix, *self.vectors, R_64F, self.algorithm, self.solve_of]
        self.one = one
        self.call("cusparseSpSV_bufferSize", *self.operands, ctypes.byref(needed))
        self.buffer = cupy.empty(max(1, needed.value), cupy.uint8)
        self.call("cusparseSpSV_analysis", *self.operands, ctypes.c_void_p(self.buffer.data.ptr))

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: status {status}")

    def solve(self):
        self.call("cusparseSpSV_solve", *self.operands)

    def update(self, values):
        self.call("cusparseSpSV_updateMatrix", self.handle, self.solve_of, ctypes.c_void_p(values.data.ptr), GENERAL)


def measured(name, A, library, seconds):
    A = scipy.sparse.csr_matrix(A).astype("float64")
    A.sort_indices()
    _, upper = example().ilu0(A)
    L = scipy.sparse.csr_matrix(upper.T)
    L.sort_indices()
    changed = L.data * (1.0 + 0.1 * numpy.cos(numpy.arange(L.nnz)))
    values = cupy.asarray(changed)
    vendors = [figures_of_vendor(library, L, values, algorithm) for algorithm in ALGORITHMS]
    for stability in ("windowed", "row_wise"):
        search = {"seconds": seconds} if seconds else None
        f = tuned_alone(lambda: sparsetune.sptrsv(cupyx.scipy.sparse.csr_matrix(L), stability=stability, wait=True, search=search))
        in_place = f.plan.update_in_place(values)
        taken = median_us(lambda: f.plan.update_values(values))
        operand = cupy.ones(L.shape[0])
        solved = median_us(lambda: f(operand))
        b = numpy.random.default_rng(1).uniform(-1, 1, L.shape[0])
        x = cupy.asnumpy(f(cupy.asarray(b)))
        N = scipy.sparse.csr_matrix((changed, L.indices, L.indptr), L.shape)
        error = float((abs(N @ x - b) / (abs(N) @ abs(x) + abs(b))).max())
        candidate = candidate_text(f.plan.manifest["candidate"])
        figures = [f"{taken:.4g}", f"{solved:.4g}", *vendors[0], *vendors[1], f"{error:.2g}"]
        yield [name, L.shape[0], L.nnz, stability, candidate, "yes" if in_place else "no", *figures]


def figures_of_vendor(library, L, values, algorithm):
    """Microseconds of an update and of a solve; nothing where the library does not have the algorithm, or no update for it."""
    try:
        vendor = Vendor(library, L, algorithm)
        # The first update may be slower than the others.
        vendor.update(values)
    except RuntimeError as error:
        print(f"algorithm {algorithm}: {error}", file=sys.stderr)
        return ["", ""]
    return [f"{median_us(action):.4g}" for action in (lambda: vendor.update(values), vendor.solve)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("matrix", nargs="*", type=Path)
    parser.add_argument("--cusparse", default="libcusparse.so.12")
    parser.add_argument("--grid", type=int, default=200, help="points of the square in each direction")
    parser.add_argument("--seconds", type=float, help="budget of each search")
    arguments = parser.parse_args()
    library = ctypes.CDLL(arguments.cusparse)
    n, side = arguments.grid, max(3, round(arguments.grid ** (2 / 3)))
    made = [(f"poisson square {n}", lambda: square(n)), (f"poisson cube {side}", lambda: cube(side))]
    files = [(path.name, lambda path=path: scipy.io.mmread(path)) for path in arguments.matrix]
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(COLUMNS)
    for name, make in files or made:
        for row in measured(name, make(), library, arguments.seconds):
            out.writerow(row)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
