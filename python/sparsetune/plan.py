"""Plans from bundles: `sparsetune.load`."""

from __future__ import annotations

import json
import logging
import os
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Dict, Optional, Tuple, Union

from . import _device, _native
from ._native import Matrix, OperandError, WrongPattern
from ._operands import Runner, runner_for, update_on_device
from ._source import as_matrix

__all__ = ["CheckReport", "Plan", "Promise", "load"]

logger = logging.getLogger("sparsetune")

#: Families whose x is approximate by design.
_APPROXIMATE = ("sweeps", "inverse")


@dataclass(frozen=True)
class Promise:
    """What was measured when the plan was made."""

    #: A call; None in a predicted plan, which was not measured.
    median_us: Optional[float]
    ci95_us: Optional[Tuple[float, float]]
    #: Largest error of the result, relative to the sum of the absolute values of its terms; of an
    #: approximate solve (families `sweeps` and `inverse`) the largest residual, beside the largest
    #: element of b.
    rel_error: Optional[float]
    #: The best routine of the vendor, measured in the same session.
    vendor: Optional[Dict[str, Any]]
    speedup: Optional[float]
    preprocess_ms: Optional[float]
    #: Calls after which the preprocessing has been recovered.
    break_even_calls: Optional[int]
    #: The clock of these times: `isolated` (each call alone) or `pipelined` (calls back to back).
    clock: Optional[str]
    #: The time of a call by each clock that was read: `{"isolated": {"median_us": ...}, ...}`.
    clocks: Dict[str, Any]


@dataclass(frozen=True)
class CheckReport:
    """The result of a plan's check of itself."""

    passed: bool
    #: Largest error found, as a share of the error allowed.
    worst: float
    #: Number of outputs, or of equations, that were compared.
    compared: int


class Plan:
    """A plan that is ready to run: `C = plan(B)`.

    Calls of one plan follow each other, since its kernels may pass on state: on a GPU they belong
    on one stream, or on streams that wait for one another. Load the bundle twice for calls at the
    same time.
    """

    def __init__(self, native: _native.Plan) -> None:
        self._native = native
        # One attribute, since another thread may call with another library's operands meanwhile.
        self._runner: Tuple[Optional[type], Runner] = (None, native.run)
        self._warned = False

    def __call__(
        self,
        B: Any,
        out: Any = None,
        alpha: Optional[float] = None,
        beta: Optional[float] = None,
    ) -> Any:
        """`C = A B` (or `alpha A B + beta C` with C in `out`), or x of `T x = B`.

        B is an array of NumPy or CuPy, or a tensor of PyTorch, where the plan runs. On a GPU the
        call is queued on the library's current stream; with `out` it allocates nothing, and it
        never synchronises.
        """
        kind, run = self._runner
        if kind is not type(B):
            run = runner_for(self._native, B)
            self._runner = (type(B), run)
        return run(B, out, alpha, beta)

    @cached_property
    def manifest(self) -> Dict[str, Any]:
        """The bundle's manifest (docs/bundle.md)."""
        text = self._native.manifest
        if text is None:
            raise OperandError("An untuned plan has no bundle, and so no manifest.")
        manifest: Dict[str, Any] = json.loads(text)
        return manifest

    @cached_property
    def promise(self) -> Promise:
        """What was measured when the plan was made."""
        said = self.manifest["promise"]
        interval = said.get("ci95_us")
        return Promise(
            median_us=said.get("median_us"),
            ci95_us=None if interval is None else (interval[0], interval[1]),
            rel_error=said.get("rel_error"),
            vendor=said.get("vendor"),
            speedup=said.get("speedup"),
            preprocess_ms=said.get("preprocess_ms"),
            break_even_calls=said.get("break_even_calls"),
            # Bundles of version 1 name none: they were timed by the only clock that there was.
            clock=said.get("clock") or (None if said.get("median_us") is None else "isolated"),
            clocks=said.get("clocks") or {},
        )

    @cached_property
    def problem(self) -> Dict[str, Any]:
        """`op` and the operation's fields, as in the API."""
        problem: Dict[str, Any] = json.loads(self._native.problem)
        return problem

    @property
    def device(self) -> str:
        """`cpu`, or `cuda:0`."""
        ordinal = self._native.ordinal
        return "cpu" if ordinal is None else f"cuda:{ordinal}"

    @property
    def shape(self) -> Tuple[int, int]:
        """Rows of C and rows of B: the shape of the operator."""
        return self._native.c[0], self._native.b[0]

    @property
    def warnings(self) -> Tuple[str, ...]:
        """What differs from the device that the plan was measured on."""
        return tuple(self._native.warnings)

    def check(self) -> CheckReport:
        """Run the bundle's own check: sampled outputs are compared with float64's."""
        passed, worst, compared = self._native.check()
        return CheckReport(passed, worst, compared)

    def update_values(self, values: Any) -> None:
        """Replace the values of the matrix; its pattern stays.

        `values` are all values in canonical order (by row, then by column), or a sparse matrix with
        the same pattern. An array on the plan's GPU, in the problem's type, stays there if the
        plan's arrays hold the values as they are; the update is then queued on the current stream.

        How near an approximate plan comes (families `sweeps` and `inverse`) is not known with other
        values than those that it was measured with: its first update warns of that.
        """
        if not self.update_in_place(values):
            self._native.update_values(self._canonical(values))
            self._warn_of_unknown_error()

    def update_in_place(self, values: Any) -> bool:
        """Update from values on the plan's GPU, without the host; False if that cannot be done with
        these."""
        if self._native.ordinal is None:
            return False
        how = self.manifest["update_values"]
        if how["kind"] != "gather" or not how.get("kernel"):
            return False
        if not update_on_device(self._native, int(self.manifest["matrix"]["nnz"]), values):
            return False
        self._warn_of_unknown_error()
        return True

    @cached_property
    def approximate(self) -> bool:
        """Whether x is approximate by design: by the family `sweeps` or `inverse`, in one solve of a
        pair or both."""
        if self._native.manifest is None:
            return False
        parts = self.manifest.get("parts") or [self.manifest]
        return any(part["candidate"]["family"] in _APPROXIMATE for part in parts)

    def _warn_of_unknown_error(self) -> None:
        if self.approximate and not self._warned:
            self._warned = True
            warnings.warn(
                "The plan is approximate, and how near it comes was measured with other values: "
                "with new ones its error is not known. Tune again for values that differ much.",
                RuntimeWarning,
                stacklevel=2,
            )

    def gave_up(self) -> bool:
        """Whether a kernel of an earlier call stopped itself instead of waiting on; its result is
        then not complete."""
        return self._native.gave_up()

    def _canonical(self, values: Any) -> Any:
        if (
            hasattr(values, "ndim")
            and values.ndim == 1
            or hasattr(values, "dim")
            and values.dim() == 1
        ):
            return host_values(values)
        matrix = as_matrix(values)
        self.expect_pattern(matrix)
        return matrix.arrays()[2]

    def expect_pattern(self, matrix: Matrix) -> None:
        """Refuse a matrix with another pattern."""
        ours = self.manifest["matrix"]["pattern_digest"]
        if matrix.pattern_digest != ours:
            raise WrongPattern(
                "The plan is for a matrix with another pattern: its pattern digest is "
                f"{ours[:12]}..., but that of this matrix is {matrix.pattern_digest[:12]}...."
            )

    def __repr__(self) -> str:
        rows, cols = self.shape
        return f"<sparsetune plan for {self.problem['op']}, {rows} x {cols}, on {self.device}>"


def host_values(values: Any) -> Any:
    """One-dimensional values of any library as a NumPy array of float32 or float64."""
    import numpy

    if type(values).__module__.partition(".")[0] == "torch":
        values = values.detach().cpu()
        values = (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()
    elif hasattr(values, "get") and hasattr(values, "device"):
        values = values.get()
    values = numpy.asarray(values)
    narrow = values.dtype in (numpy.float16, numpy.float32)
    return numpy.ascontiguousarray(values, numpy.float32 if narrow else numpy.float64)


def load(
    path: Union[str, "os.PathLike[str]"],
    device: Optional[str] = None,
    *,
    libraries: Tuple[str, ...] = (),
) -> Plan:
    """Load a bundle and prepare its plan, on the CPU or the first GPU as the bundle says, or on
    `device` (`cuda:1`).

    Every member is compared with its hash first. `libraries` are CUDA libraries, or folders with
    them, that come before the system's. Raises `BundleError`, `WrongDevice` or `StalePlan`.
    """
    plan = Plan(_native.Plan.load(os.fspath(path), device, _device.libraries(libraries)))
    for warning in plan.warnings:
        logger.warning("%s: %s", os.fspath(path), warning)
    return plan
