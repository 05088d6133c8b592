"""Operators and preconditioners for the iterative solvers of SciPy and CuPy."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Callable, Optional

from ._native import OperandError
from ._operands import Dense
from ._problem import result_of
from ._source import CUPY, SCIPY, source_of
from .operator import Operator, ilu, spmm, sptrsv

__all__ = ["linear_operator", "preconditioner"]


def linear_operator(A: Any, **options: Any) -> Any:
    """`A` as a LinearOperator of SciPy, or of CuPy for a CuPy matrix: `x -> A x`, and `x -> A^T x`
    as its adjoint.

    Its attribute `factors` has the operator, to wait for its plan or to give it new values.
    `options` are those of `sparsetune.spmm`. Products with the transpose have a plan of their own,
    made when first used.
    """
    product = spmm(A, 1, **options)
    return _linear_operator(A, product, product, lambda: product.adjoint())


def preconditioner(
    L: Any,
    U: Optional[Any] = None,
    *,
    unit_lower: bool = False,
    unit_upper: bool = False,
    combined: bool = False,
    **options: Any,
) -> Any:
    """`x -> U^-1 L^-1 x` as a LinearOperator: two triangular solves, each with a plan of its own.

    With `combined`, the one matrix given holds both factors of an incomplete LU factorisation, as
    `sparsetune.ilu` takes it: both are tuned by one request and run by one call, and
    `made.factors[0].update_values` gives both new values.

    Without `U` it is L's transpose, as for an incomplete Cholesky factorisation. `unit_lower` and
    `unit_upper` say that the diagonal of the factor is all ones and need not be stored, as that of
    L in an LU factorisation. `options` are those of `sparsetune.sptrsv`.
    """
    if combined:
        if U is not None or unit_lower or unit_upper:
            raise OperandError(
                "Combined factors are one matrix, with ones on the diagonal of L and the diagonal "
                "of U stored: U, unit_lower and unit_upper are for factors of their own."
            )
        both = ilu(L, **options)
        return _linear_operator(L, both, both, lambda: both.adjoint())
    lower = sptrsv(L, lower=True, unit_diagonal=unit_lower, **options)
    upper = (
        sptrsv(L, lower=True, unit_diagonal=unit_lower, transpose=True, **options)
        if U is None
        else sptrsv(U, lower=False, unit_diagonal=unit_upper, **options)
    )
    if lower.shape != upper.shape:
        raise OperandError(
            f"L is {lower.shape} and U is {upper.shape}: they must have the same shape."
        )
    made = _linear_operator(
        L,
        lower,
        lambda x: upper(lower(x)),
        lambda: lambda x: lower.adjoint()(upper.adjoint()(x)),
    )
    made.factors = (lower, upper)
    return made


def _linear_operator(
    A: Any,
    operator: Operator,
    product: Callable[[Any], Any],
    adjoint: Callable[[], Callable[[Any], Any]],
) -> Any:
    library, sparse = {
        SCIPY: ("numpy", "scipy.sparse.linalg"),
        CUPY: ("cupy", "cupyx.scipy.sparse.linalg"),
    }.get(source_of(A).framework, ("", ""))
    if not library:
        raise OperandError(
            "A LinearOperator is made for matrices of SciPy and CuPy, not of PyTorch."
        )
    arrays, linear_operator = import_module(library), import_module(sparse).LinearOperator
    names = str(operator.problem["dtype"]), result_of(operator.problem)
    dtype, result = (Dense(0, 0, name, "row", 1).array_dtype(arrays) for name in names)

    def as_operand(x: Any) -> Any:
        """Solvers pass vectors of their own type, sometimes as a column."""
        return arrays.ascontiguousarray(x, dtype).reshape(-1)

    made = linear_operator(
        operator.shape,
        matvec=lambda x: product(as_operand(x)),
        rmatvec=lambda x: adjoint()(as_operand(x)),
        dtype=result,
    )
    made.factors = (operator,)
    return made
