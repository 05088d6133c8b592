"""The extension: what Rust does for this package."""

from typing import Any, Tuple

import numpy
from numpy.typing import NDArray

VERSION: str
__file__: str

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

class NotFound(ServerError):
    """A server does not have what was asked for."""

class Matrix:
    """A sparse matrix in canonical form, which remembers the order of the values that it was made from."""

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
        """The canonical values that belong to `data`, in the order of the arrays that the matrix was made from."""

def main(argv: list[str]) -> int:
    """Run the program with these arguments, of which the first is its name, and return its exit code."""

def set_program(program: str, leading: list[str]) -> None:
    """Set the program with its leading arguments that this process starts for measurements."""
