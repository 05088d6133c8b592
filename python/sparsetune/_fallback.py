"""What runs while there is no plan: our host kernel with settings by rule, or the library's own
routine."""

from __future__ import annotations

import threading
from typing import Any, Callable, List, Mapping, Optional, Tuple

from . import _native
from ._native import Matrix, OperandError
from ._operands import Call, Dense, Taker, factors, library_of, runner_for, taker_for
from ._problem import result_of, solves_of, to_json
from ._source import CUPY, TORCH, Source

#: Alignment of elements, which is all that the libraries' own routines need.
_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}


class Untuned:
    """The product or solve of an operator, without a plan."""

    #: What it does, to be said: `SciPy multiplies`.
    what: str

    def __init__(self, source: Source, matrix: Matrix, problem: Mapping[str, Any]) -> None:
        # Factors are applied afterwards, and a hint to round is not taken.
        plain = {
            name: value for name, value in problem.items() if name not in ("accumulate", "tf32")
        }
        verb = "multiplies" if problem["op"] == "spmm" else "solves"
        self._native: Optional[_native.Plan] = None
        self._library: Optional[_Library] = None
        # One attribute, since another thread may call with another library's operands meanwhile.
        self._runner: Tuple[Optional[type], Callable[[Any, Any], Any]] = (None, _unset)
        #: Of what makes runners, which have the values of their time, and of what replaces values.
        self._lock = threading.Lock()
        if source.device == "cpu" and _native.unsupported("cpu", to_json(plain)) is None:
            self._native = _native.Plan.untuned(matrix, to_json(plain))
            self.what = f"sparsetune's CPU kernel {verb} with settings by rule"
        else:
            self._library = _Library(source, matrix, plain)
            self.what = f"{self._library.name} {verb}"

    def __call__(self, b: Any, out: Any = None, alpha: Any = None, beta: Any = None) -> Any:
        kind, run = self._runner
        if kind is not type(b):
            with self._lock:
                run = self._runner_for(b)
                self._runner = (type(b), run)
        return run(b, out)

    def _runner_for(self, b: Any) -> Callable[[Any, Any], Any]:
        if self._native is None:
            assert self._library is not None
            return self._library.runner(b)
        runner = runner_for(self._native, b)
        return lambda b, out: runner(b, out, None, None)

    def update_values(self, canonical: Any) -> None:
        """Take new values in canonical order."""
        if self._native is not None:
            self._native.update_values(canonical)
        if self._library is not None:
            with self._lock:
                self._library.set_values(canonical)
                self._runner = (None, _unset)


def scaled(run: Any, b: Any, out: Any, alpha: Optional[float], beta: Optional[float]) -> Any:
    """`alpha run(b) + beta out`, by a plain call and a pass over its result."""
    if alpha is None and beta is None:
        return run(b, out)
    one, other = factors(out, alpha, beta)
    if other == 0.0:
        out = run(b, out)
        out *= one
        return out
    product = run(b)
    product *= one
    out *= other
    out += product
    return out


def _unset(b: Any, out: Any) -> Any:
    raise AssertionError("the runner is chosen by the first operand")


class _Library:
    """SciPy's, CuPy's or PyTorch's own routine."""

    def __init__(self, source: Source, matrix: Matrix, problem: Mapping[str, Any]) -> None:
        self._source, self._matrix, self._problem = source, matrix, problem
        rows, cols = matrix.shape
        self._solves = problem["op"] == "sptrsv"
        self._transposed = bool(problem.get("transpose"))
        if self._transposed and not self._solves:
            rows, cols = cols, rows
        dtype, layout = str(problem["dtype"]), str(problem.get("layout", "row"))
        count = int(problem["rhs"] if self._solves else problem["n"])
        b, c = (
            Dense(length, count, name, layout, _BYTES[name])
            for length, name in ((cols, dtype), (rows, result_of(problem)))
        )
        self._call = Call(b, c, None if source.device == "cpu" else source.ordinal)
        self._values = matrix.arrays()[2]
        self.name = {CUPY: "CuPy", TORCH: "PyTorch"}.get(source.framework, "SciPy")

    def set_values(self, canonical: Any) -> None:
        self._values = canonical

    def runner(self, b: Any) -> Callable[[Any, Any], Any]:
        """The routine for operands of b's library."""
        take: Taker = taker_for(self._call, b)
        library = library_of(b)
        if library == "torch":
            compute = self._torch()
        elif library == "cupy":
            compute = self._cupy()
        else:
            if self._call.ordinal is not None:
                raise OperandError("The matrix is on a GPU, so B must be on it, too.")
            compute = self._scipy()

        def run(b: Any, out: Any) -> Any:
            b, out = take(b, out)
            out[...] = compute(b)
            return out

        return run

    def _arrays(self, narrow: str) -> Any:
        """Pointers, columns and values; types of 16 bits are computed in single."""
        import numpy

        pointers, columns, _ = self._matrix.arrays()
        if self._matrix.nnz < 2**31:
            pointers = pointers.astype(numpy.int32)
        half = narrow in ("float16", "bfloat16")
        return self._values.astype("float32" if half else narrow), columns, pointers

    def _scipy(self) -> Callable[[Any], Any]:
        import scipy.sparse
        import scipy.sparse.linalg

        A = scipy.sparse.csr_matrix(
            self._arrays(self._call.b.numpy_dtype), shape=self._matrix.shape
        )
        return self._of_scipy(A, scipy.sparse, scipy.sparse.linalg)

    def _cupy(self) -> Callable[[Any], Any]:
        import cupy
        import cupyx.scipy.sparse
        import cupyx.scipy.sparse.linalg

        with cupy.cuda.Device(self._call.ordinal):
            parts = tuple(cupy.asarray(part) for part in self._arrays(self._call.b.numpy_dtype))
            A = cupyx.scipy.sparse.csr_matrix(parts, shape=self._matrix.shape)
            return self._of_scipy(A, cupyx.scipy.sparse, cupyx.scipy.sparse.linalg)

    def _of_scipy(self, A: Any, sparse: Any, linalg: Any) -> Callable[[Any], Any]:
        """SciPy and CuPy have the same functions."""
        if not self._solves:
            A = A.T.tocsr() if self._transposed else A
            computed = A.dtype
            return lambda b: A @ (b if b.dtype == computed else b.astype(computed))

        def solver(lower: bool, unit: bool) -> Callable[[Any], Any]:
            T = sparse.tril(A, -unit) if lower else sparse.triu(A, +unit)
            if unit:
                T = T + sparse.eye(T.shape[0], dtype=T.dtype)
            if self._transposed:
                T, lower = T.T, not lower
            T = T.tocsr()
            return lambda b: linalg.spsolve_triangular(T, b, lower=lower, unit_diagonal=unit)

        return _in_turn([solver(*solve) for solve in solves_of(self._problem)])

    def _torch(self) -> Callable[[Any], Any]:
        import torch

        values, columns, pointers = (
            torch.from_numpy(part) for part in self._arrays(self._call.b.numpy_dtype)
        )
        A = torch.sparse_csr_tensor(
            pointers, columns, values, self._matrix.shape, check_invariants=False
        )
        A = A.to(self._source.device)
        if not self._solves:
            if self._transposed:
                A = A.to_sparse_coo().t().coalesce().to_sparse_csr()

            def multiply(b: Any) -> Any:
                wide = b if b.dtype == A.dtype else b.to(A.dtype)
                product = A @ (wide if wide.dim() == 2 else wide[:, None])
                return product if b.dim() == 2 else product[:, 0]

            return multiply

        def solver(lower: bool, unit: bool) -> Callable[[Any], Any]:
            def solve(b: Any) -> Any:
                columns = b if b.dim() == 2 else b[:, None]
                x = torch.triangular_solve(
                    columns, A, upper=not lower, transpose=self._transposed, unitriangular=unit
                ).solution
                return x if b.dim() == 2 else x[:, 0]

            return solve

        return _in_turn([solver(*solve) for solve in solves_of(self._problem)])


def _in_turn(solves: List[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Each solve with what the one before it has computed."""

    def run(b: Any) -> Any:
        for solve in solves:
            b = solve(b)
        return b

    return run
