"""sparsetune: sparse products and triangular solves by the fastest kernel for the matrix and the
device.

    import sparsetune
    f = sparsetune.spmm(A, n=128)
    C = f(B)

`A` is a sparse matrix of SciPy, CuPy or PyTorch, and `B` is where `A` is. Importing this package
imports nothing else; what a name needs is imported when the name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._native import (
        VERSION,
        BundleError,
        Error,
        Matrix,
        NotFound,
        OperandError,
        ServerError,
        StalePlan,
        TuningError,
        WrongDevice,
        WrongPattern,
    )
    from ._source import as_matrix as matrix
    from .client import AsyncClient, Client, Job, Lookup
    from .linalg import linear_operator, preconditioner
    from .operator import Operator, Spmm, Sptrsv, ilu, spmm, sptrsv
    from .plan import CheckReport, Plan, Promise, load

    __version__ = VERSION

_NATIVE = (
    "BundleError",
    "Error",
    "Matrix",
    "NotFound",
    "OperandError",
    "ServerError",
    "StalePlan",
    "TuningError",
    "WrongDevice",
    "WrongPattern",
)
#: Each public name with the module that has it, and its name there.
_HOMES = {
    **{name: ("._native", name) for name in _NATIVE},
    "__version__": ("._native", "VERSION"),
    "AsyncClient": (".client", "AsyncClient"),
    "Client": (".client", "Client"),
    "Job": (".client", "Job"),
    "Lookup": (".client", "Lookup"),
    "CheckReport": (".plan", "CheckReport"),
    "Operator": (".operator", "Operator"),
    "Plan": (".plan", "Plan"),
    "Promise": (".plan", "Promise"),
    "Spmm": (".operator", "Spmm"),
    "Sptrsv": (".operator", "Sptrsv"),
    "ilu": (".operator", "ilu"),
    "linear_operator": (".linalg", "linear_operator"),
    "load": (".plan", "load"),
    "matrix": ("._source", "as_matrix"),
    "preconditioner": (".linalg", "preconditioner"),
    "spmm": (".operator", "spmm"),
    "sptrsv": (".operator", "sptrsv"),
}

__all__ = [
    "AsyncClient",
    "BundleError",
    "CheckReport",
    "Client",
    "Error",
    "Job",
    "Lookup",
    "Matrix",
    "NotFound",
    "OperandError",
    "Operator",
    "Plan",
    "Promise",
    "ServerError",
    "Spmm",
    "Sptrsv",
    "StalePlan",
    "TuningError",
    "WrongDevice",
    "WrongPattern",
    "__version__",
    "ilu",
    "linear_operator",
    "load",
    "matrix",
    "preconditioner",
    "spmm",
    "sptrsv",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home[0], __name__), home[1])
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
