"""Problems as the API names them, made from the arguments of this package."""

from __future__ import annotations

import json
from operator import index
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from ._native import OperandError
from ._source import dtype_of

#: The flat object of the API: `op` and the operation's fields. Fields at their default that came
#: later are left out, so that older servers and keys agree.
Problem = Mapping[str, Union[str, int, bool]]

DTYPES = {
    "f16": "f16", "float16": "f16", "half": "f16",
    "bf16": "bf16", "bfloat16": "bf16",
    "f32": "f32", "float32": "f32", "float": "f32",
    "f64": "f64", "float64": "f64", "double": "f64",
}  # fmt: skip


def dtype_name(dtype: Any) -> str:
    """`f16`, `bf16`, `f32` or `f64` for what NumPy, CuPy or PyTorch call it."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None)
    if name is None:
        name = getattr(dtype, "name", None) or str(dtype)
    known = DTYPES.get(str(name).replace("torch.", ""))
    if known is None:
        raise OperandError(f"The element type must be f16, bf16, f32 or f64, not {name}.")
    return known


def to_json(problem: Mapping[str, Any]) -> str:
    """As the extension takes it."""
    return json.dumps(dict(problem))


def _count(value: Any, what: str, most: Optional[int]) -> int:
    """A number of columns, also as NumPy's integers."""
    try:
        count = -1 if isinstance(value, bool) else index(value)
    except TypeError:
        count = -1
    if count < 1 or most is not None and count > most:
        allowed = "a positive integer" if most is None else f"1 to {most}"
        raise OperandError(f"The number of {what} must be {allowed}, not {value!r}.")
    return count


def spmm_problem(
    n: int,
    dtype: str,
    *,
    layout: str = "row",
    transpose: bool = False,
    accumulate: bool = False,
    tf32: bool = False,
    output: Any = None,
) -> Dict[str, Union[str, int, bool]]:
    """`C = A B`, or `alpha A B + beta C`."""
    n = _count(n, "columns n", None)
    if layout not in ("row", "col"):
        raise OperandError(f"The layout must be `row` or `col`, not {layout!r}.")
    problem: Dict[str, Union[str, int, bool]] = {
        "op": "spmm", "n": n, "dtype": dtype, "layout": layout,
    }  # fmt: skip
    for name, given in (("accumulate", accumulate), ("tf32", tf32), ("transpose", transpose)):
        if given:
            problem[name] = True
    result = dtype if output is None or output == "same" else dtype_name(output)
    if result != dtype:
        if dtype not in ("f16", "bf16") or result != "f32":
            raise OperandError(
                f"C is of {dtype}, as A and B are, or of f32 where they are f16 or bf16; not of "
                f"{result}."
            )
        problem["output"] = result
    return problem


def result_of(problem: Problem) -> str:
    """The element type of C, or of x."""
    output = str(problem.get("output", "same"))
    return str(problem["dtype"]) if output == "same" else output


def sptrsv_problem(
    dtype: str,
    *,
    lower: bool = True,
    unit_diagonal: bool = False,
    transpose: bool = False,
    rhs: int = 1,
    stability: str = "windowed",
    approximate: bool = False,
    both: bool = False,
) -> Dict[str, Union[str, int, bool]]:
    """`T x = b` with T a triangle of A; with `both` a solve with each of them."""
    rhs = _count(rhs, "right-hand sides", 64)
    if stability not in ("windowed", "row_wise"):
        raise OperandError(f"The stability must be `windowed` or `row_wise`, not {stability!r}.")
    problem: Dict[str, Union[str, int, bool]] = {
        "op": "sptrsv",
        "rhs": rhs,
        "dtype": dtype,
        "triangle": "both" if both else "lower" if lower else "upper",
        "diagonal": "unit" if unit_diagonal else "non-unit",
        "transpose": bool(transpose),
    }
    # As where plans are kept: it is named only where it is not what it usually is.
    if stability != "windowed":
        problem["stability"] = stability
    if approximate:
        problem["approximate"] = True
    return problem


def solves_of(problem: Problem) -> List[Tuple[bool, bool]]:
    """The solves of a problem in their order: whether the triangle is the lower one, and whether
    its diagonal is all ones."""
    unit = problem["diagonal"] == "unit"
    if problem["triangle"] != "both":
        return [(problem["triangle"] == "lower", unit)]
    lower, upper = (True, unit), (False, False)
    return [upper, lower] if problem.get("transpose") else [lower, upper]


def make_problem(op: str, A: Any, n: Optional[int] = None, **fields: Any) -> Problem:
    """The problem of an operation on `A`; the element type is that of A's values unless given."""
    dtype = fields.pop("dtype", None)
    dtype = dtype_of(A) if dtype is None else dtype_name(dtype)
    if op == "spmm":
        if n is None:
            raise OperandError("A product needs n, the number of columns of B.")
        return spmm_problem(n, dtype, **fields)
    if op == "sptrsv":
        if n is not None:
            fields["rhs"] = n
        return sptrsv_problem(dtype, **fields)
    raise OperandError(f"The operation must be `spmm` or `sptrsv`, not {op!r}.")
