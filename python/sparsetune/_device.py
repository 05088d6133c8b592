"""The class of a device, by which plans are kept and looked up."""

from __future__ import annotations

import os
import sys
from typing import List, Sequence

from . import _native

_LIBRARIES = "SPARSETUNE_LIBRARIES"


def libraries(named: Sequence[str] = ()) -> List[str]:
    """CUDA libraries, or folders with them, that come before the system's.

    Those that the caller names, those of SPARSETUNE_LIBRARIES (separated by colons), and the
    `nvidia` packages of this interpreter, whether its environment is activated or not: CuPy and
    PyTorch use the same.
    """
    found = [*map(os.fspath, named)]
    found += [path for path in os.environ.get(_LIBRARIES, "").split(os.pathsep) if path]
    packages = (os.path.join(place, "nvidia") for place in sys.path if place)
    return found + [path for path in packages if os.path.isdir(path)]


def capturing(framework: str, device: str) -> bool:
    """Whether the library's current stream is being captured in a CUDA graph."""
    if device == "cpu":
        return False
    if framework == "torch":
        torch = sys.modules["torch"]
        return bool(torch.cuda.is_current_stream_capturing())
    stream = sys.modules["cupy"].cuda.get_current_stream()
    return bool(stream.is_capturing())


def device_class(device: str) -> str:
    """The class of `cpu` or `cuda:0`, as the service names it. A GPU is asked through the library
    that the caller uses."""
    if device == "cpu":
        return _native.device_class()
    ordinal = int(device.partition(":")[2] or 0)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        found = torch.cuda.get_device_properties(ordinal)
        name, major, minor = found.name, found.major, found.minor
        multiprocessors = found.multi_processor_count
    else:
        from cupy.cuda import runtime

        facts = runtime.getDeviceProperties(ordinal)
        name, major, minor = facts["name"].decode(), facts["major"], facts["minor"]
        multiprocessors = facts["multiProcessorCount"]
    return _native.device_class((name, f"{major}.{minor}", multiprocessors))
