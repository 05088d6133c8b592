"""How this package starts its own program again, as the process that measures."""

from __future__ import annotations

import sys

from . import _native

# The file itself is loaded, without the package, NumPy, or anything on the path: a start takes
# milliseconds.
_CODE = (
    "import sys\n"
    "from importlib.machinery import ExtensionFileLoader as L, ModuleSpec as S\n"
    "l = L('_native', sys.argv[1])\n"
    "m = l.create_module(S('_native', l, origin=sys.argv[1]))\n"
    "l.exec_module(m)\n"
    "sys.exit(m.main(['sparsetune', *sys.argv[2:]]))"
)


def command() -> list[str]:
    """The command that runs the program: append a subcommand and its arguments."""
    return [sys.executable, "-I", "-S", "-c", _CODE, str(_native.__file__)]


def main(arguments: list[str]) -> int:
    """Run the program in this process, once, and return its exit code."""
    program, *leading = command()
    _native.set_program(program, leading)
    return _native.main(["sparsetune", *arguments])
