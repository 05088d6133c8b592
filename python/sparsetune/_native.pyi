"""The extension: what Rust does for this package."""

from typing import Any, List, Optional, Tuple

import numpy
from numpy.typing import NDArray

VERSION: str

class Error(Exception):
    """Base class of all errors of sparsetune."""

class OperandError(Error):
    """An operand has another shape, type, layout, alignment or place than the call needs."""

class BundleError(Error):
    """A file is not a sound bundle."""

class StalePlan(Error):
    """A plan was made by another version of the kernels than this one has."""

class WrongDevice(Error):
    """A plan is for another device."""

class WrongPattern(Error):
    """A plan is for a matrix with another pattern."""

class TuningError(Error):
    """Tuning has failed."""

class ServerError(Error):
    """A server could not be reached, or refused."""

    #: The status of a refusal; absent if there was no answer.
    status: int

class NotFound(ServerError):
    """A server does not have what was asked for."""

class Matrix:
    """A sparse matrix in canonical form, which remembers the order of the values that it was made
    from."""

    def __new__(
        cls,
        format: str,
        shape: Tuple[int, int],
        first: NDArray[Any],
        second: NDArray[Any],
        data: NDArray[Any],
    ) -> "Matrix": ...
    @property
    def shape(self) -> Tuple[int, int]: ...
    @property
    def nnz(self) -> int: ...
    @property
    def stored(self) -> int:
        """Number of values in the arrays that the matrix was made from; duplicates count."""
    @property
    def was_canonical(self) -> bool:
        """Whether the arrays that the matrix was made from were canonical."""
    @property
    def digest(self) -> str: ...
    @property
    def pattern_digest(self) -> str: ...
    def arrays(
        self,
    ) -> Tuple[NDArray[numpy.int64], NDArray[numpy.int32], NDArray[numpy.float64]]:
        """Row pointers, column indices and values of the canonical form, as new arrays."""
    def values(self, data: NDArray[Any]) -> NDArray[numpy.float64]:
        """The canonical values that belong to `data`, in the order of the arrays that the matrix
        was made from."""

class Plan:
    """A plan that is ready to run, and the operands of its calls."""

    @staticmethod
    def load(path: str, device: Optional[str] = None, libraries: List[str] = ...) -> "Plan":
        """Open and verify a bundle and prepare its plan: on `device`, or where the bundle says."""
    @staticmethod
    def untuned(matrix: Matrix, problem: str) -> "Plan":
        """A host kernel with settings by rule, for the problem as JSON."""
    def run(
        self,
        b: NDArray[Any],
        out: Optional[NDArray[Any]] = None,
        alpha: Optional[float] = None,
        beta: Optional[float] = None,
    ) -> NDArray[Any]:
        """One call on NumPy arrays. `out` is made if it is not given."""
    def run_at(self, b: int, c: int, alpha: float, beta: float) -> None:
        """One call on host memory by its addresses, which are not checked beyond overlap and
        alignment."""
    def run_on_device(self, b: int, c: int, stream: int, alpha: float, beta: float) -> None:
        """Queue one call on a stream of the plan's GPU. Addresses are not checked beyond their
        alignment."""
    def update_values(self, values: NDArray[Any]) -> None:
        """Replace the values: all of them, in canonical order."""
    def update_values_on_device(self, values: int, stream: int) -> None:
        """As `update_values`, for values of the problem's type on the plan's GPU, queued on a
        stream."""
    def check(self) -> Tuple[bool, float, int]:
        """Whether the bundle's check passed, the largest error as a share of the allowed one, and
        the number of samples."""
    def gave_up(self) -> bool:
        """Whether a kernel of an earlier call ended itself."""
    @property
    def manifest(self) -> Optional[str]:
        """The manifest as JSON, or what both manifests of a pair say; None for an untuned plan."""
    @property
    def problem(self) -> str:
        """The problem as JSON."""
    @property
    def warnings(self) -> List[str]: ...
    @property
    def ordinal(self) -> Optional[int]:
        """The GPU's number; None for a plan on the CPU."""
    @property
    def b(self) -> Tuple[int, int, str, str, int]:
        """Rows, columns, type, layout and alignment of B."""
    @property
    def c(self) -> Tuple[int, int, str, str, int]:
        """Rows, columns, type, layout and alignment of C."""

class Tuner:
    """A tuner with a data folder of its own, for one device."""

    def __new__(
        cls, folder: str, device: str, command: Tuple[str, List[str]], libraries: List[str]
    ) -> "Tuner": ...
    def tune(
        self,
        matrix: Matrix,
        problem: str,
        search: Optional[str],
        expected_calls: Optional[int],
        path: str,
        again: bool,
    ) -> str:
        """Tune unless the folder has a measured plan and `again` is not said, write the bundle of
        the plan to a file, and return the plan's id."""
    def close(self) -> None:
        """End the process that measures, once nobody tunes any more."""

def unsupported(device: str, problem: str) -> Optional[str]:
    """Why a problem cannot run on a kind of device (`cpu`, `cuda:0`); None if it can."""

def write_pair(first: str, second: str, path: str) -> None:
    """Write two bundles into one file, which one call runs: the plans of both triangles of a
    matrix, in the order of their calls."""

def device_class(gpu: Optional[Tuple[str, str, int]] = None) -> str:
    """The class of this host's CPU, or of a GPU by name, compute capability and number of
    multiprocessors."""

def check_process() -> None:
    """Raise `Error` in a process that was forked from one that had used this module: what computes
    and waits would hang there. All that computes here checks it, too."""

def main(argv: list[str]) -> int:
    """Run the program with these arguments, of which the first is its name, and return its exit
    code."""

def set_program(program: str, leading: list[str]) -> None:
    """Set the program with its leading arguments that this process starts for measurements."""
