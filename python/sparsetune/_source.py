"""What a sparse matrix of SciPy, CuPy or PyTorch is: its framework, device, type and arrays.
Imports none of them."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Tuple

from ._native import Matrix, OperandError

if TYPE_CHECKING:
    import numpy

SCIPY, CUPY, TORCH = "scipy", "cupy", "torch"

_ACCEPTED = (
    "A must be a sparse matrix of SciPy, CuPy or PyTorch (CSR, CSC or COO), or a "
    "sparsetune.Matrix, not {}."
)


@dataclass(frozen=True)
class Source:
    """A sparse matrix of a caller."""

    A: Any
    #: `scipy`, `cupy` or `torch`.
    framework: str
    #: `cpu` or `cuda:0`.
    device: str
    shape: Tuple[int, int]
    #: `f16`, `bf16`, `f32` or `f64`: the type in which it is multiplied unless the caller asks for another.
    dtype: str

    def matrix(self) -> Matrix:
        """The canonical matrix; from a GPU its arrays are copied to the host once."""
        kind, first, second, data = _arrays(self)
        return Matrix(kind, self.shape, first, second, data)

    def data(self) -> "numpy.ndarray[Any, Any]":
        """The stored values on the host, in the order in which `matrix` takes them."""
        data: "numpy.ndarray[Any, Any]" = _arrays(self)[3]
        return data

    @property
    def ordinal(self) -> int:
        """The number of the GPU."""
        return int(self.device.partition(":")[2] or 0)


def source_of(A: Any) -> Source:
    """Recognises a sparse matrix."""
    module = type(A).__module__.partition(".")[0]
    if module == "scipy" and hasattr(A, "tocsr"):
        _two_dimensions(A.shape)
        return Source(A, SCIPY, "cpu", (int(A.shape[0]), int(A.shape[1])), _dtype(A.dtype))
    if module == "cupyx" and hasattr(A, "tocsr"):
        device = f"cuda:{A.data.device.id}"
        return Source(A, CUPY, device, (int(A.shape[0]), int(A.shape[1])), _dtype(A.dtype))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(A, torch.Tensor) and A.layout != torch.strided:
        _two_dimensions(A.shape)
        device = "cpu" if A.device.type == "cpu" else f"cuda:{A.device.index or 0}"
        if A.device.type not in ("cpu", "cuda"):
            raise OperandError(
                f"A is on {A.device}, but sparsetune has plans for CPUs and NVIDIA GPUs."
            )
        return Source(A, TORCH, device, (int(A.shape[0]), int(A.shape[1])), _dtype(A.dtype))
    raise OperandError(_ACCEPTED.format(_a(A)))


def as_matrix(A: Any) -> Matrix:
    """The canonical matrix of anything that is accepted as one."""
    return A if isinstance(A, Matrix) else source_of(A).matrix()


def dtype_of(A: Any) -> str:
    """The element type of a matrix; f32 for a digest or a canonical matrix, which have none."""
    return "f32" if isinstance(A, (str, Matrix)) else source_of(A).dtype


def _dtype(dtype: Any) -> str:
    name = str(dtype).replace("torch.", "")
    if name.startswith("complex"):
        raise OperandError(f"The values of A are {name}: complex matrices are not supported.")
    return {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}.get(name, "f64")


def _two_dimensions(shape: Any) -> None:
    if len(shape) != 2:
        raise OperandError(f"A must have two dimensions, not {len(shape)}.")


def _a(value: Any) -> str:
    kind = type(value)
    return (
        f"{kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else kind.__name__
    )


def _arrays(source: Source) -> Tuple[str, Any, Any, Any]:
    """Format, the two index arrays and the values, on the host."""
    if source.framework == TORCH:
        kind, first, second, data = _torch_arrays(source.A)
    else:
        kind, first, second, data = _scipy_arrays(source.A)
        if source.framework == CUPY:
            first, second, data = first.get(), second.get(), data.get()
    return kind, *_indices(first, second), _values(data)


def _scipy_arrays(A: Any) -> Tuple[str, Any, Any, Any]:
    """Also CuPy's, whose sparse matrices have the same attributes."""
    if A.format == "coo":
        return "coo", A.row, A.col, A.data
    if A.format not in ("csr", "csc"):
        A = A.tocsr()
    return A.format, A.indptr, A.indices, A.data


def _torch_arrays(A: Any) -> Tuple[str, Any, Any, Any]:
    import torch

    A = A.detach()
    if A.layout == torch.sparse_csr:
        parts = ("csr", A.crow_indices(), A.col_indices(), A.values())
    elif A.layout == torch.sparse_csc:
        parts = ("csc", A.ccol_indices(), A.row_indices(), A.values())
    elif A.layout == torch.sparse_coo:
        indices = A._indices()
        parts = ("coo", indices[0], indices[1], A._values())
    else:
        raise OperandError(
            f"A has the layout {A.layout}: it must be sparse_csr, sparse_csc or sparse_coo."
        )
    kind, first, second, data = parts
    if data.dim() != 1:
        raise OperandError("A must be a matrix of numbers, not of dense blocks or vectors.")
    if data.dtype == torch.bfloat16:
        data = data.float()
    return kind, first.cpu().numpy(), second.cpu().numpy(), data.cpu().numpy()


def _indices(first: Any, second: Any) -> Tuple[Any, Any]:
    """Both of one type, contiguous."""
    import numpy

    kind = numpy.int32 if first.dtype == second.dtype == numpy.int32 else numpy.int64
    return numpy.ascontiguousarray(first, kind), numpy.ascontiguousarray(second, kind)


def _values(data: Any) -> Any:
    """Contiguous float32 or float64."""
    import numpy

    if data.dtype.kind == "c":
        raise OperandError(f"The values of A are {data.dtype}: complex matrices are not supported.")
    narrow = data.dtype in (numpy.float16, numpy.float32)
    return numpy.ascontiguousarray(data, numpy.float32 if narrow else numpy.float64)


def as_npz(matrix: Matrix) -> bytes:
    """The canonical matrix as SciPy's `save_npz` writes it, uncompressed."""
    import numpy

    pointers, columns, values = matrix.arrays()
    out = io.BytesIO()
    numpy.savez(
        out,
        format=numpy.array(b"csr"),
        shape=numpy.array(matrix.shape, numpy.int64),
        indptr=pointers,
        indices=columns,
        data=values,
    )
    return out.getvalue()
