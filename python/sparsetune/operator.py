"""Sparse products and triangular solves as callables, untuned until their plan is there."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import Any, Callable, Dict, Mapping, Optional, Tuple, Union

from . import _fallback, _native
from ._device import capturing
from ._finder import Finder, Options, waits
from ._native import Matrix, OperandError, WrongPattern
from ._problem import Problem, dtype_name, spmm_problem, sptrsv_problem, to_json
from ._source import TORCH, Source, as_matrix, source_of
from .plan import Plan, Promise, host_values, load

__all__ = ["Operator", "Spmm", "Sptrsv", "ilu", "spmm", "sptrsv"]

logger = logging.getLogger("sparsetune")


class Operator:
    """A sparse product or solve with one matrix; made by `spmm` and `sptrsv`."""

    def __init__(
        self,
        source: Source,
        problem: Problem,
        options: Options,
        *,
        matrix: Optional[Matrix] = None,
        wait: Optional[bool] = None,
        lock: Any = None,
    ) -> None:
        wait = waits(problem, wait)
        self._source, self._options = source, options
        self._matrix = source.matrix() if matrix is None else matrix
        self._problem = dict(problem)
        self._accumulates = bool(problem.get("accumulate"))
        # Shared with the adjoint, since new values are given to both.
        self._lock = threading.RLock() if lock is None else lock
        #: What gives the new values in canonical order, if there were any.
        self._values: Optional[Callable[[], Any]] = None
        self._plan: Optional[Plan] = None
        #: The plan that calls run: `_plan`, as soon as a call can switch to it.
        self._active: Optional[Plan] = None
        self._untuned: Optional[_fallback.Untuned] = None
        # Only one of the two keeps the other, so that both go as soon as nobody has them: their
        # plans hold memory of the device.
        self._adjoint: Optional["Operator"] = None
        self._adjoint_of: Callable[[], Optional["Operator"]] = lambda: None
        self._finder = Finder(self._matrix, self._problem, source.device, options, self._take)
        unsupported = _native.unsupported(source.device, to_json(self._problem))
        if unsupported is not None:
            # Nothing is to be found or tuned; what runs says so when it is first called.
            self._finder.error = OperandError(unsupported)
            self._finder.done.set()
        elif not self._finder.on_disk():
            if wait:
                self._finder.run()
            else:
                self._finder.start()
        if wait:
            self.wait()
        # Found just now, by this thread, so no call has run untuned.
        self._active = self._plan

    def __call__(
        self,
        B: Any,
        out: Any = None,
        alpha: Optional[float] = None,
        beta: Optional[float] = None,
    ) -> Any:
        """`C = A B`, or `alpha A B + beta C` with C in `out`; for a solve, x of `T x = B`.

        B is an array or tensor of A's library, where A is. On a GPU the call is queued on the
        library's current stream.
        """
        plan = self._active
        if plan is not self._plan:
            plan = self._switched()
        if plan is None:
            return _fallback.scaled(self._without_plan(), B, out, alpha, beta)
        if alpha is None and beta is None or self._accumulates:
            return plan(B, out, alpha, beta)
        return _fallback.scaled(plan, B, out, alpha, beta)

    def _switched(self) -> Optional[Plan]:
        """What runs from now on, since another plan is there: the new one, unless this call is
        being captured, which then has what its predecessors had."""
        if not capturing(self._source.framework, self.device):
            self._active = self._plan
        return self._active

    def _without_plan(self) -> _fallback.Untuned:
        _native.check_process()
        with self._lock:
            if self._untuned is None:
                self._untuned = _fallback.Untuned(self._source, self._matrix, self._problem)
                if self._values is not None:
                    self._untuned.update_values(self._values())
                logger.warning("%s", self._sentence(self._untuned.what))
            return self._untuned

    def _sentence(self, what: str) -> str:
        """What runs instead of a plan, said once."""
        rows, cols = self._matrix.shape
        name = f"The {self._problem['op']} plan for a {rows} x {cols} matrix ({self.digest[:12]})"
        if self._finder.done.is_set():
            return f"{name} cannot be had: {self._finder.error} Instead, {what}."
        return f"{name} is not there yet: until it is, {what}."

    def _take(self, plan: Plan) -> None:
        with self._lock:
            if self._values is not None:
                plan.update_values(self._values())
            self._plan = plan

    @property
    def matrix(self) -> Matrix:
        """The canonical matrix, as it was when the operator was made."""
        return self._matrix

    @property
    def digest(self) -> str:
        """The digest that plans are looked up by."""
        return self._matrix.digest

    @property
    def pattern_digest(self) -> str:
        return self._matrix.pattern_digest

    @property
    def problem(self) -> Problem:
        """`op` and the operation's fields, as in the API."""
        return dict(self._problem)

    @property
    def device(self) -> str:
        """`cpu`, or `cuda:0`."""
        return self._source.device

    @property
    def shape(self) -> Tuple[int, int]:
        """Rows of C and rows of B."""
        rows, cols = self._matrix.shape
        return (cols, rows) if self._problem.get("transpose") else (rows, cols)

    @property
    def tuned(self) -> bool:
        """Whether calls run a plan by now."""
        return self._plan is not None

    @property
    def plan(self) -> Optional[Plan]:
        """The plan, once there is one."""
        return self._plan

    @property
    def promise(self) -> Optional[Promise]:
        """What was measured when the plan was made."""
        return None if self._plan is None else self._plan.promise

    @property
    def error(self) -> Optional[Exception]:
        """Why there is no plan, if looking for one has ended."""
        return self._finder.error

    def wait(self, timeout: Optional[float] = None) -> Plan:
        """Wait until the plan is there and return it.

        Raises what went wrong if there will be none, and `TimeoutError` after `timeout` seconds.
        """
        _native.check_process()
        if self._plan is None and not self._finder.done.wait(timeout):
            raise TimeoutError(f"The plan is not there after {timeout} seconds.")
        if self._plan is None:
            # No variable has it: its traceback would have this frame, and so itself.
            raise self._finder.failure()
        self._active = self._plan
        return self._plan

    def use(self, plan: Union[Plan, str]) -> None:
        """Run this plan, or the bundle in this file, from now on. It must be for the same pattern
        and problem."""
        if not isinstance(plan, Plan):
            plan = load(plan, self.device)
        plan.expect_pattern(self._matrix)
        if _without_defaults(plan.problem) != _without_defaults(self._problem):
            raise OperandError(f"The plan is for the problem {plan.problem}, not {self._problem}.")
        if plan.device != self.device:
            raise OperandError(f"The plan is on {plan.device}, but the matrix is on {self.device}.")
        if self._values is None and plan.manifest["matrix"]["digest"] != self.digest:
            plan.update_values(self._matrix.arrays()[2])
        self._take(plan)
        self._active = plan

    def update_values(self, values: Any) -> None:
        """Replace the values of the matrix; its pattern stays.

        `values` are the data of the matrix in the order of the A that the operator was made from
        (`A.data`), or a sparse matrix with the same pattern. Plan and fallback both have the new
        values from the next call on. On a GPU, data that is there in the problem's type and in
        canonical order stays there, if the plan's arrays hold the values as they are.
        """
        _native.check_process()
        with self._lock:
            other = self._adjoint or self._adjoint_of()
            both = [self] if other is None else [self, other]
            if self._matrix.was_canonical and all(
                one._plan is not None and one._plan.update_in_place(values) for one in both
            ):
                # Kept as they are now, for plans that come later.
                kept = values.copy() if hasattr(values, "copy") else values.detach().clone()
                matrix = self._matrix
                canonical = lambda: matrix.values(host_values(kept))  # noqa: E731
            else:
                found = self._canonical(values)
                for one in both:
                    one._update(found)
                canonical = lambda: found  # noqa: E731
            for one in both:
                one._values = canonical

    def _update(self, canonical: Any) -> None:
        with self._lock:
            if self._plan is not None:
                self._plan.update_values(canonical)
            if self._untuned is not None:
                self._untuned.update_values(canonical)

    def _canonical(self, values: Any) -> Any:
        flat = getattr(values, "ndim", None) == 1
        if flat:
            return self._matrix.values(host_values(values))
        matrix = as_matrix(values)
        if matrix.pattern_digest != self.pattern_digest:
            raise WrongPattern(
                "The new matrix has another pattern than the operator's: make another operator."
            )
        return matrix.arrays()[2]

    def adjoint(self) -> "Operator":
        """The operator with the transposed matrix: `A^T B`, or `T^T x = b`. Its plan is another one
        of the same matrix."""
        _native.check_process()
        with self._lock:
            made = self._adjoint or self._adjoint_of()
            if made is None:
                problem = dict(self._problem)
                problem["transpose"] = not problem.get("transpose", False)
                if problem["op"] == "spmm" and not problem["transpose"]:
                    del problem["transpose"]
                made = type(self)(
                    self._source, problem, self._options, matrix=self._matrix, lock=self._lock
                )
                if self._values is not None:
                    made._update(self._values())
                    made._values = self._values
                made._adjoint_of = weakref.ref(self)
                self._adjoint = made
            return made

    def __repr__(self) -> str:
        rows, cols = self.shape
        state = "tuned" if self.tuned else "not tuned yet"
        return f"<sparsetune {self._problem['op']} {rows} x {cols} on {self.device}, {state}>"


class Spmm(Operator):
    """`C = A B`; made by `sparsetune.spmm`."""


class Sptrsv(Operator):
    """x of `T x = b`; made by `sparsetune.sptrsv`."""


def _without_defaults(problem: Mapping[str, Any]) -> Dict[str, Any]:
    """What a problem says beyond what it would be without that field."""
    said = {name: value for name, value in problem.items() if value is not False}
    if said.get("output") == "same":
        del said["output"]
    return said


def _options(
    server: Optional[str],
    token: Optional[str],
    search: Optional[Mapping[str, Any]],
    expected_calls: Optional[int],
    libraries: Tuple[str, ...],
    tune: bool,
) -> Options:
    return Options(server, token, search, expected_calls, tuple(libraries), tune)


def _made(kind: type, source: Source, device: Optional[str]) -> type:
    """The class for the library that the matrix is of."""
    if device is not None and device != source.device:
        raise OperandError(
            f"A is on {source.device}: move it to {device} to have it multiplied there."
        )
    if source.framework != TORCH:
        return kind
    from . import torch

    if getattr(source.A, "requires_grad", False):
        raise OperandError(
            "The values of A require a gradient, which is a sampled product (SDDMM) that "
            "sparsetune does not have yet: "
            "detach A, or keep its values out of the gradient."
        )
    return torch.TorchSpmm if kind is Spmm else torch.TorchSptrsv


def spmm(
    A: Any,
    n: int,
    *,
    dtype: Any = None,
    layout: str = "row",
    transpose: bool = False,
    accumulate: bool = False,
    tf32: bool = False,
    output: Any = None,
    device: Optional[str] = None,
    server: Optional[str] = None,
    token: Optional[str] = None,
    wait: bool = False,
    tune: bool = True,
    search: Optional[Mapping[str, Any]] = None,
    expected_calls: Optional[int] = None,
    libraries: Tuple[str, ...] = (),
) -> Spmm:
    """A product with `A`: `C = f(B)` is `A B`, with B of n columns.

    A is a sparse matrix of SciPy, CuPy or PyTorch; B is then an array or tensor of the same
    library, on the same device, in `layout` (`row`: C order, `col`: Fortran order), of `dtype` (A's
    unless given). The plan is taken from the disk, from the server (`server`, or
    SPARSETUNE_SERVER), or made by tuning: on the server, or without one in this process. Until it
    is there calls run untuned; with `wait=True` the plan is waited for.

    transpose: `C = A^T B` with one upload of A.
    accumulate: a plan for `alpha A B + beta C`; without it, alpha and beta cost a pass of their
        own.
    tf32: products may be computed from operands rounded to tf32.
    output: the type of C; `f32` for products in f16 and bf16, which are summed in f32.
    tune: whether a plan that is not there is made.
    search: of the search: strategy, top_k, trials, seconds.
    expected_calls: preprocessing is charged as if it paid for this many calls.
    libraries: CUDA libraries, or folders with them, that come before the system's.
    """
    source = source_of(A)
    problem = spmm_problem(
        n,
        source.dtype if dtype is None else dtype_name(dtype),
        layout=layout,
        transpose=transpose,
        accumulate=accumulate,
        tf32=tf32,
        output=output,
    )
    options = _options(server, token, search, expected_calls, libraries, tune)
    made: Spmm = _made(Spmm, source, device)(source, problem, options, wait=wait)
    return made


def sptrsv(
    L: Any,
    lower: bool = True,
    unit_diagonal: bool = False,
    transpose: bool = False,
    rhs: int = 1,
    *,
    stability: str = "windowed",
    approximate: bool = False,
    dtype: Any = None,
    device: Optional[str] = None,
    server: Optional[str] = None,
    token: Optional[str] = None,
    wait: Optional[bool] = None,
    tune: bool = True,
    search: Optional[Mapping[str, Any]] = None,
    expected_calls: Optional[int] = None,
    libraries: Tuple[str, ...] = (),
) -> Sptrsv:
    """A triangular solve with a triangle of `L`: `x = f(b)` solves `T x = b`, or `T^T x = b`.

    `lower` names the triangle; the other one of L is ignored. With `unit_diagonal` the diagonal of
    T is all ones. b has the rows of L, and `rhs` columns (none needed for one). With
    `stability="row_wise"` no equation is rewritten, so that each row is as exact as substitution
    makes it; by default windows of rows are. `approximate` consents to an approximate x, for a
    preconditioner: residuals of at most 1/8 of the largest element of b, for a b at random. x is a
    linear map of b, the same in each call, and a solve with the transpose need not be its adjoint.
    So that it is the same, an approximate operator (and its adjoint) waits for its plan,
    `wait=False` is refused, and no plan is an error. After `update_values` the residuals are not
    known, which is warned of once. The rest is as for `sparsetune.spmm`.
    """
    source = source_of(L)
    problem = sptrsv_problem(
        source.dtype if dtype is None else dtype_name(dtype),
        lower=lower,
        unit_diagonal=unit_diagonal,
        transpose=transpose,
        rhs=rhs,
        stability=stability,
        approximate=approximate,
    )
    options = _options(server, token, search, expected_calls, libraries, tune)
    made: Sptrsv = _made(Sptrsv, source, device)(source, problem, options, wait=wait)
    return made


def ilu(
    F: Any,
    unit_diagonal: bool = True,
    transpose: bool = False,
    rhs: int = 1,
    *,
    stability: str = "windowed",
    approximate: bool = False,
    dtype: Any = None,
    device: Optional[str] = None,
    **options: Any,
) -> Sptrsv:
    """Both solves with combined factors by one call: `x = f(b)` is `U^-1 L^-1 b`.

    `F` holds U on and above the diagonal and L strictly below it, as incomplete LU factorisations
    leave them: the diagonal of L is all ones. With `unit_diagonal=False` it is that of U, too. With
    `transpose` x is `L^-T U^-T b`. One request tunes both, each in half of the budget, and one call
    runs both. `update_values` takes new factors of the same pattern. With `approximate` both are
    solved by the same sweeps, by approximate inverses of the same power and steps, or both exactly,
    so that x is a symmetric map of b where `L U` is symmetric. Otherwise as `sparsetune.sptrsv`.
    """
    source = source_of(F)
    problem = sptrsv_problem(
        source.dtype if dtype is None else dtype_name(dtype),
        unit_diagonal=unit_diagonal,
        transpose=transpose,
        rhs=rhs,
        stability=stability,
        approximate=approximate,
        both=True,
    )
    wait, libraries = options.pop("wait", None), tuple(options.pop("libraries", ()))
    looked_for = Options(libraries=libraries, **options)
    made: Sptrsv = _made(Sptrsv, source, device)(source, problem, looked_for, wait=wait)
    return made
