"""Bundles on disk, by digest, problem and device class."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Optional

from ._problem import Problem

_FOLDER = "SPARSETUNE_CACHE"


def folder() -> Path:
    """Where bundles and the tuner's data are kept: SPARSETUNE_CACHE, or `sparsetune` in the user's
    cache folder."""
    named = os.environ.get(_FOLDER)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sparsetune"


def bundle_path(
    digest: str, problem: Problem, device_class: str, expected_calls: Optional[int] = None
) -> Path:
    """The bundle's file, whether it is there or not. Plans for another number of calls are
    others."""
    key = ";".join(f"{name}={problem[name]}" for name in sorted(problem))
    if expected_calls is not None:
        key += f";expected_calls={expected_calls}"
    name = hashlib.sha256(f"{key}\n{device_class}".encode()).hexdigest()[:24]
    return folder() / "bundles" / digest[:2] / digest / f"{problem['op']}-{name}.stplan"


def tuner_folder() -> Path:
    """The data folder of tuners without a server."""
    return folder() / "tuner"
