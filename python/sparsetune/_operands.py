"""Dense operands of NumPy, CuPy and PyTorch: what they must be, and their addresses. Imports none
of the three."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Tuple

from ._native import OperandError, Plan

#: A call with operands of one library: B, out, alpha, beta.
Runner = Callable[[Any, Any, Optional[float], Optional[float]], Any]
#: Checks B and out, makes out if there is none, and returns both.
Taker = Callable[[Any, Any], Tuple[Any, Any]]

_NUMPY_NAMES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}


class Dense(NamedTuple):
    """A dense operand: tight, in one of two orders."""

    rows: int
    cols: int
    dtype: str
    layout: str
    #: Bytes that the address must be a multiple of.
    alignment: int

    @property
    def numpy_dtype(self) -> str:
        return _NUMPY_NAMES[self.dtype]

    def array_dtype(self, arrays: Any) -> Any:
        """The type in NumPy or CuPy, which have bfloat16 by ml_dtypes alone."""
        if self.dtype != "bf16":
            return arrays.dtype(self.numpy_dtype)
        try:
            import ml_dtypes
        except ImportError:
            raise OperandError(
                "NumPy and CuPy have no bfloat16 of their own: install ml_dtypes, or give tensors "
                "of PyTorch."
            ) from None
        return arrays.dtype(ml_dtypes.bfloat16)

    @property
    def rows_first(self) -> bool:
        """Whether it is contiguous in C order; a single column is in both."""
        return self.layout == "row" or self.cols == 1

    def refusal(self, what: str, found: str) -> OperandError:
        order = "row-major (C order)" if self.layout == "row" else "column-major (Fortran order)"
        return OperandError(
            f"{what} must be {self.rows} x {self.cols} elements of {self.numpy_dtype}, contiguous "
            f"and {order}; it is {found}."
        )

    def unaligned(self, what: str) -> OperandError:
        return OperandError(
            f"The address of {what} must be a multiple of {self.alignment} bytes here."
        )


class Call(NamedTuple):
    """The operands of a call, and the GPU that they are on (None: the host)."""

    b: Dense
    c: Dense
    ordinal: Optional[int]


def library_of(x: Any) -> str:
    """`numpy`, `cupy`, `torch`, or another module's name."""
    return type(x).__module__.partition(".")[0]


def runner_for(plan: Plan, b: Any) -> Runner:
    """How the plan is called with operands of the same library as `b`."""
    call = Call(Dense(*plan.b), Dense(*plan.c), plan.ordinal)
    library = library_of(b)
    if library == "cupy":
        return _cupy_runner(plan, call)
    if library == "torch":
        return _torch_host_runner(plan, call) if call.ordinal is None else _torch_runner(plan, call)
    # What is no NumPy array either is refused there.
    return plan.run


def taker_for(call: Call, b: Any) -> Taker:
    """What checks the operands of a call in the library of `b`."""
    library = library_of(b)
    if library == "cupy":
        return _cupy_taker(call)
    if library == "torch":
        return _torch_taker(call)
    return _numpy_taker(call)


def factors(out: Any, alpha: Optional[float], beta: Optional[float]) -> Tuple[float, float]:
    """alpha and beta as numbers; a beta needs an `out`."""
    alpha = 1.0 if alpha is None else float(alpha)
    beta = 0.0 if beta is None else float(beta)
    if out is None and beta != 0.0:
        raise OperandError(
            "With beta, `out` must be given: it holds the C that beta is a factor of."
        )
    return alpha, beta


def _kind(x: Any) -> str:
    kind = type(x)
    return f"a {kind.__module__}.{kind.__qualname__}"


def _fits(dense: Dense, shape: Any) -> bool:
    """A single column may be given without its second dimension."""
    return shape == (dense.rows, dense.cols) or dense.cols == 1 and shape == (dense.rows,)


def _numpy_taker(call: Call) -> Taker:
    import numpy

    b_type, c_type = call.b.array_dtype(numpy), call.c.array_dtype(numpy)

    def check(what: str, x: Any, dense: Dense, dtype: Any) -> None:
        if not isinstance(x, numpy.ndarray):
            raise dense.refusal(what, _kind(x))
        if not _fits(dense, x.shape) or x.dtype != dtype:
            raise dense.refusal(what, f"{x.shape} of {x.dtype}")
        if not (x.flags.c_contiguous if dense.rows_first else x.flags.f_contiguous):
            raise dense.refusal(what, f"strided by {x.strides} bytes")

    def take(b: Any, out: Any) -> Tuple[Any, Any]:
        check("B", b, call.b, b_type)
        if out is None:
            shape = (call.c.rows, call.c.cols)[: b.ndim]
            return b, numpy.empty(shape, c_type, "C" if call.c.rows_first else "F")
        check("out", out, call.c, c_type)
        if not out.flags.writeable:
            raise OperandError("`out` must be writable.")
        if numpy.shares_memory(b, out):
            raise OperandError("`out` must not overlap B.")
        return b, out

    return take


def _cupy_taker(call: Call) -> Taker:
    import cupy

    if call.ordinal is None:
        raise OperandError("The matrix is on the CPU, so B must be a NumPy array, not a CuPy one.")
    ordinal, ndarray, empty = call.ordinal, cupy.ndarray, cupy.empty
    b_type, c_type = call.b.array_dtype(cupy), call.c.array_dtype(cupy)
    full_b, full_c = (call.b.rows, call.b.cols), (call.c.rows, call.c.cols)
    b_rows_first, c_rows_first = call.b.rows_first, call.c.rows_first

    def check(
        what: str, x: Any, dense: Dense, dtype: Any, full: Tuple[int, int], rows_first: bool
    ) -> None:
        if not isinstance(x, ndarray):
            raise dense.refusal(what, _kind(x))
        if x.shape != full and not _fits(dense, x.shape) or x.dtype != dtype:
            raise dense.refusal(what, f"{x.shape} of {x.dtype}")
        if not (x.flags.c_contiguous if rows_first else x.flags.f_contiguous):
            raise dense.refusal(what, f"strided by {x.strides} bytes")
        if x.data.device_id != ordinal:
            raise OperandError(
                f"{what} is on GPU {x.data.device_id}, but the matrix is on GPU {ordinal}."
            )
        if x.data.ptr % dense.alignment:
            raise dense.unaligned(what)

    def take(b: Any, out: Any) -> Tuple[Any, Any]:
        check("B", b, call.b, b_type, full_b, b_rows_first)
        if out is None:
            return b, empty(full_c[: b.ndim], c_type, "C" if c_rows_first else "F")
        check("out", out, call.c, c_type, full_c, c_rows_first)
        return b, out

    return take


def _torch_taker(call: Call) -> Taker:
    import torch

    where = "cpu" if call.ordinal is None else "cuda"
    index = call.ordinal
    device = torch.device(where) if index is None else torch.device(where, index)
    b_type, c_type = getattr(torch, call.b.numpy_dtype), getattr(torch, call.c.numpy_dtype)
    full_b, full_c = (call.b.rows, call.b.cols), (call.c.rows, call.c.cols)
    b_rows_first, c_rows_first = call.b.rows_first, call.c.rows_first
    tensor, empty, strided = torch.Tensor, torch.empty, torch.strided
    number = -1 if index is None else index

    def check(
        what: str, x: Any, dense: Dense, dtype: Any, full: Tuple[int, int], rows_first: bool
    ) -> None:
        if not isinstance(x, tensor):
            raise dense.refusal(what, _kind(x))
        if x.layout != strided:
            raise dense.refusal(what, "sparse")
        if x.shape != full and not _fits(dense, tuple(x.shape)) or x.dtype is not dtype:
            raise dense.refusal(what, f"{tuple(x.shape)} of {x.dtype}")
        if x.get_device() != number:
            raise OperandError(f"{what} is on {x.device}, but the matrix is on {device}.")
        if not (x if rows_first else x.t()).is_contiguous():
            raise dense.refusal(what, f"strided by {x.stride()} elements")
        if x.data_ptr() % dense.alignment:
            raise dense.unaligned(what)

    def take(b: Any, out: Any) -> Tuple[Any, Any]:
        check("B", b, call.b, b_type, full_b, b_rows_first)
        if out is None:
            if c_rows_first:
                return b, empty(full_c[: b.dim()], dtype=c_type, device=device)
            return b, empty(full_c[::-1], dtype=c_type, device=device).t()
        check("out", out, call.c, c_type, full_c, c_rows_first)
        return b, out

    return take


def _cupy_runner(plan: Plan, call: Call) -> Runner:
    import cupy

    take, launch = _cupy_taker(call), plan.run_on_device
    # Faster than an object of the stream, where this version of CuPy has it.
    stream = getattr(cupy.cuda.stream, "get_current_stream_ptr", None) or (
        lambda: cupy.cuda.get_current_stream().ptr
    )

    def run(b: Any, out: Any, alpha: Optional[float], beta: Optional[float]) -> Any:
        one, zero = (1.0, 0.0) if alpha is None and beta is None else factors(out, alpha, beta)
        b, out = take(b, out)
        launch(b.data.ptr, out.data.ptr, stream(), one, zero)
        return out

    return run


def _torch_runner(plan: Plan, call: Call) -> Runner:
    import torch

    take, launch, ordinal = _torch_taker(call), plan.run_on_device, call.ordinal
    # Faster than an object of the stream, where this version of PyTorch has it.
    stream = getattr(torch._C, "_cuda_getCurrentRawStream", None) or (
        lambda index: torch.cuda.current_stream(index).cuda_stream
    )

    def run(b: Any, out: Any, alpha: Optional[float], beta: Optional[float]) -> Any:
        one, zero = (1.0, 0.0) if alpha is None and beta is None else factors(out, alpha, beta)
        b, out = take(b, out)
        launch(b.data_ptr(), out.data_ptr(), stream(ordinal), one, zero)
        return out

    return run


def _torch_host_runner(plan: Plan, call: Call) -> Runner:
    """CPU tensors, by their addresses."""
    take, at = _torch_taker(call), plan.run_at

    def run(b: Any, out: Any, alpha: Optional[float], beta: Optional[float]) -> Any:
        one, zero = (1.0, 0.0) if alpha is None and beta is None else factors(out, alpha, beta)
        b, out = take(b, out)
        at(b.data_ptr(), out.data_ptr(), one, zero)
        return out

    return run


def update_on_device(plan: Plan, nnz: int, values: Any) -> bool:
    """Queues new values that are on the plan's GPU, in its type and in canonical order; False if
    they are not."""
    library = library_of(values)
    if plan.ordinal is None or library not in ("cupy", "torch"):
        return False
    name = _NUMPY_NAMES[plan.b[2]]
    if library == "cupy":
        import cupy

        # The name alone, since CuPy has bfloat16 by another package.
        same = values.dtype.name == name
        here = values.shape == (nnz,) and same and values.flags.c_contiguous
        if not here or values.data.device_id != plan.ordinal:
            return False
        plan.update_values_on_device(values.data.ptr, cupy.cuda.get_current_stream().ptr)
        return True
    import torch

    here = (
        values.shape == (nnz,) and values.dtype is getattr(torch, name) and values.is_contiguous()
    )
    if not here or values.get_device() != plan.ordinal:
        return False
    stream = torch.cuda.current_stream(plan.ordinal).cuda_stream
    plan.update_values_on_device(values.data_ptr(), stream)
    return True
