"""The half for CuPy, with arrays that only look like CuPy's: there is no GPU in the tests
(run_gpu.py is for one)."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy
import pytest

import sparsetune
from sparsetune import _operands


class Array:
    """As much of a CuPy array as a call looks at."""

    def __init__(self, x: Any, device: int = 0, offset: int = 0) -> None:
        self.x = x
        self.shape, self.dtype, self.flags, self.strides, self.ndim = (
            x.shape,
            x.dtype,
            x.flags,
            x.strides,
            x.ndim,
        )
        self.data = SimpleNamespace(ptr=x.ctypes.data + offset, device_id=device)


Array.__module__ = "cupy"


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = ModuleType("cupy")
    module.ndarray, module.dtype = Array, numpy.dtype
    module.empty = lambda shape, dtype, order: Array(numpy.empty(shape, dtype, order))
    stream = SimpleNamespace(ptr=77)
    module.cuda = SimpleNamespace(get_current_stream=lambda: stream, stream=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def fake_plan(layout: str = "row", cols: int = 4) -> Any:
    calls: list[Any] = []
    updates: list[Any] = []
    return SimpleNamespace(
        b=(30, cols, "f32", layout, 16),
        c=(40, cols, "f32", layout, 16),
        ordinal=0,
        calls=calls,
        updates=updates,
        run_on_device=lambda *call: calls.append(call),
        update_values_on_device=lambda *update: updates.append(update),
    )


def aligned(rows: int, cols: int, order: Any = "C", dtype: str = "float32") -> Any:
    x: Any = numpy.zeros(rows * cols * 8 + 16, "uint8")
    x = x[-x.ctypes.data % 16 :][: rows * cols * numpy.dtype(dtype).itemsize].view(dtype)
    return x.reshape((rows, cols), order=order)


@pytest.mark.parametrize("layout", ["row", "col"])
def test_addresses_and_stream_are_passed_on(cupy: Any, layout: str) -> None:
    plan, order = fake_plan(layout), "C" if layout == "row" else "F"
    B, C = Array(aligned(30, 4, order)), Array(aligned(40, 4, order))
    run = _operands.runner_for(plan, B)
    assert run(B, C, None, None) is C
    run(B, C, 2.0, -1.0)
    at = (B.data.ptr, C.data.ptr, 77)
    assert plan.calls == [(*at, 1.0, 0.0), (*at, 2.0, -1.0)]
    with pytest.raises(sparsetune.OperandError, match="`out` must be given"):
        run(B, None, 1.0, 1.0)


def test_a_vector(cupy: Any) -> None:
    plan = fake_plan(cols=1)
    b, c = Array(aligned(30, 1)[:, 0]), Array(aligned(40, 1)[:, 0])
    assert _operands.runner_for(plan, b)(b, c, None, None) is c
    assert _operands.runner_for(plan, b)(b, None, None, None).shape == (40,)


def test_refusals(cupy: Any) -> None:
    B, C = aligned(30, 4), Array(aligned(40, 4))
    run = _operands.runner_for(fake_plan(), Array(B))
    for bad, why in [
        (Array(aligned(30, 3)), "30 x 4 elements of float32"),
        (Array(aligned(30, 4, dtype="float64")), "float64"),
        (Array(aligned(30, 4, "F")), "strided"),
        (Array(B, device=1), "on GPU 1, but the matrix is on GPU 0"),
        (Array(B, offset=4), "multiple of 16 bytes"),
        (B, "numpy.ndarray"),
    ]:
        with pytest.raises(sparsetune.OperandError, match=why):
            run(bad, C, None, None)
        with pytest.raises(sparsetune.OperandError):
            run(Array(B), bad, None, None)
    host: Any = SimpleNamespace(
        b=(30, 4, "f32", "row", 4), c=(40, 4, "f32", "row", 4), ordinal=None
    )
    with pytest.raises(sparsetune.OperandError, match="on the CPU"):
        _operands.runner_for(host, Array(B))


def test_values_that_are_on_the_gpu(cupy: Any) -> None:
    plan = fake_plan()
    values = numpy.zeros(9, "float32")
    assert _operands.update_on_device(plan, 9, Array(values))
    assert plan.updates == [(values.ctypes.data, 77)]
    for other in [
        Array(values.astype("float64")),
        Array(values, device=1),
        Array(values[::2]),
        values,
    ]:
        assert not _operands.update_on_device(plan, 9, other)
