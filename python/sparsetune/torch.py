"""PyTorch: operators with gradients, under `torch.compile` and in CUDA graphs. Imported with the
first tensor."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Optional, Tuple

import torch

from ._native import OperandError
from ._problem import result_of
from .operator import Operator, Spmm, Sptrsv
from .operator import spmm as _spmm

__all__ = ["SparseLinear", "TorchSpmm", "TorchSptrsv"]

#: Operators by the name that compiled programs know them by. A number would be taken for a size
#: that may vary.
_operators: "weakref.WeakValueDictionary[str, Operator]" = weakref.WeakValueDictionary()
_numbers = itertools.count(1)
_DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}


def _operator(name: str, adjoint: bool) -> Operator:
    found = _operators.get(name)
    if found is None:
        raise OperandError("The operator that this program was compiled with no longer exists.")
    return found.adjoint() if adjoint else found


def _fake(b: torch.Tensor, name: str, adjoint: bool) -> torch.Tensor:
    """The shape, type and strides of a result."""
    operator = _operator(name, False)
    rows, cols = operator.shape
    if adjoint:
        rows, cols = cols, rows
    _match(b, operator, cols)
    dtype = _DTYPES[result_of(operator.problem)]
    if b.dim() == 1:
        return b.new_empty((rows,), dtype=dtype)
    if operator.problem.get("layout", "row") == "row":
        return b.new_empty((rows, b.shape[1]), dtype=dtype)
    return b.new_empty((b.shape[1], rows), dtype=dtype).t()


def _match(b: torch.Tensor, operator: Operator, rows: int) -> None:
    """What a compiled program can see of a wrong operand."""
    problem = operator.problem
    columns = problem["n"] if problem["op"] == "spmm" else problem["rhs"]
    fits = b.shape == (rows, columns) or columns == 1 and b.shape == (rows,)
    if not fits or b.dtype != _DTYPES[str(problem["dtype"])]:
        raise OperandError(
            f"B must be {rows} x {columns} elements of {problem['dtype']}; "
            f"it is {tuple(b.shape)} of {b.dtype}."
        )


def _contiguous(x: torch.Tensor, operator: Operator) -> torch.Tensor:
    """In the operator's layout, without a copy if it is already."""
    if x.dim() == 1 or operator.problem.get("layout", "row") == "row":
        return x.contiguous()
    return x.t().contiguous().t()


@torch.library.custom_op("sparsetune::spmm", mutates_args=())
def _spmm_op(b: torch.Tensor, name: str, adjoint: bool) -> torch.Tensor:
    """`A B`, or `A^T B` with `adjoint`."""
    return Operator.__call__(_operator(name, adjoint), b)


@torch.library.custom_op("sparsetune::sptrsv", mutates_args=())
def _sptrsv_op(b: torch.Tensor, name: str, adjoint: bool) -> torch.Tensor:
    """x of `T x = b`, or of `T^T x = b` with `adjoint`."""
    return Operator.__call__(_operator(name, adjoint), b)


def _setup(ctx: Any, inputs: Tuple[torch.Tensor, str, bool], output: torch.Tensor) -> None:
    _, ctx.name, ctx.adjoint = inputs
    # The result's graph keeps it alive: the caller may have dropped it by the backward pass.
    ctx.operator = _operator(ctx.name, False)


def _spmm_backward(ctx: Any, grad: torch.Tensor) -> Tuple[torch.Tensor, None, None]:
    # Both products take B's type; where C is f32 they give f32, and B's gradient is of B's type.
    dtype = _DTYPES[str(ctx.operator.problem["dtype"])]
    result = _spmm_op(_contiguous(grad.to(dtype), ctx.operator), ctx.name, not ctx.adjoint)
    return result.to(dtype), None, None


def _sptrsv_backward(ctx: Any, grad: torch.Tensor) -> Tuple[torch.Tensor, None, None]:
    return _sptrsv_op(_contiguous(grad, ctx.operator), ctx.name, not ctx.adjoint), None, None


_spmm_op.register_fake(_fake)
_spmm_op.register_autograd(_spmm_backward, setup_context=_setup)
_sptrsv_op.register_fake(_fake)
_sptrsv_op.register_autograd(_sptrsv_backward, setup_context=_setup)


class _Differentiable(Operator):
    """An operator whose calls are recorded for gradients with respect to B."""

    _op: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._name = str(next(_numbers))
        _operators[self._name] = self

    def __call__(
        self,
        B: torch.Tensor,
        out: Optional[torch.Tensor] = None,
        alpha: Optional[float] = None,
        beta: Optional[float] = None,
    ) -> torch.Tensor:
        """As `Operator.__call__`; the gradient with respect to B is another product (or solve) with
        the transposed matrix.

        Calls with `out` and calls of compiled programs that pass factors are not differentiable:
        scale the result instead.
        """
        if torch.compiler.is_compiling():
            if out is not None or alpha is not None or beta is not None:
                raise OperandError(
                    "In a compiled program a call takes B alone: scale and add its result there."
                )
            return type(self)._op(B, self._name, False)
        if not (torch.is_grad_enabled() and isinstance(B, torch.Tensor) and B.requires_grad):
            return super().__call__(B, out, alpha, beta)
        if out is not None:
            raise OperandError(
                "`out` has no gradient: leave it out, or call under torch.no_grad()."
            )
        if beta is not None and beta != 0:
            raise OperandError(
                "`beta` has no gradient: leave it out and add to the result, or call under "
                "torch.no_grad()."
            )
        # Before a CUDA graph is captured, so that its backward pass finds a plan.
        self.adjoint()
        result: torch.Tensor = type(self)._op(B, self._name, False)
        return result if alpha is None else result * alpha


class TorchSpmm(_Differentiable, Spmm):
    """`C = A B` with gradients with respect to B."""

    _op = staticmethod(_spmm_op)


class TorchSptrsv(_Differentiable, Sptrsv):
    """x of `T x = b` with gradients with respect to b."""

    _op = staticmethod(_sptrsv_op)


class SparseLinear(torch.nn.Module):
    """A linear layer with a pruned weight: `y = x W^T + bias`, with x of `batch` rows.

    The weight is fixed: it has no gradient, while x and the bias have theirs. x is row-major, which
    is the transpose in column-major order, so nothing is copied. `options` are those of
    `sparsetune.spmm`.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        batch: int,
        bias: Optional[torch.Tensor] = None,
        **options: Any,
    ) -> None:
        super().__init__()
        sparse = weight.detach()
        if sparse.layout == torch.strided:
            sparse = sparse.to_sparse_csr()
        self.out_features, self.in_features = weight.shape
        self.batch = batch
        self.product: Spmm = _spmm(sparse, batch, layout="col", **options)
        self.bias = None if bias is None else torch.nn.Parameter(bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x of batch x in_features, or with more leading dimensions that multiply to `batch`."""
        flat = x.reshape(self.batch, self.in_features)
        y: torch.Tensor = self.product(flat.t()).t().reshape(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        nnz = self.product.matrix.nnz
        share = nnz / max(1, self.in_features * self.out_features)
        return (
            f"{self.in_features} -> {self.out_features}, batch {self.batch}, {share:.1%} nonzeros"
        )
