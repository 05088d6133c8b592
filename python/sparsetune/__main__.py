"""The `sparsetune` program: the binary of this name. Imports nothing but the extension."""

from __future__ import annotations

import sys

from ._program import main as run


def main() -> int:
    """Run the program with the arguments of this process and return its exit code."""
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
