"""How operators find, keep and let go of their plans; calls from several threads and in forked
processes."""

from __future__ import annotations

import gc
import logging
import shutil
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Iterator

import numpy
import pytest

import sparsetune
import sparsetune.client
import sparsetune.operator
from sparsetune import _cache, _device, _fallback, _finder
from sparsetune import plan as plans
from conftest import random_csr

QUICK: dict[str, Any] = {"top_k": 2, "seconds": 5}


def bundles(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "bundles").rglob("*.stplan"))


def refuse(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def load(_: Any) -> Any:
        raise error

    monkeypatch.setattr(_finder.Finder, "_load", load)


def test_a_sound_bundle_that_cannot_be_loaded_stays_and_calls_run_untuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    A, B = random_csr(50, 40), numpy.ones((40, 4), "float32")
    sparsetune.spmm(A, n=4, wait=True, search=QUICK)
    refuse(monkeypatch, sparsetune.Error("There is no memory left."))
    with caplog.at_level(logging.WARNING, "sparsetune"):
        f = sparsetune.spmm(A, n=4)
        for _ in range(3):
            assert numpy.allclose(f(B), A @ B, rtol=1e-4, atol=1e-5)
    assert [record.message.count("no memory left") for record in caplog.records] == [1]
    assert not f.tuned and bundles(tmp_path)
    with pytest.raises(sparsetune.Error, match="no memory left"):
        f.wait()


@pytest.mark.parametrize("kind", ["BundleError", "StalePlan", "WrongDevice", "WrongPattern"])
def test_a_bundle_that_is_of_no_use_is_removed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _cache.bundle_path(
        sparsetune.matrix(random_csr(50, 40)).digest,
        {"op": "spmm", "n": 4, "dtype": "f32", "layout": "row"},
        _device.device_class("cpu"),
    )
    path.parent.mkdir(parents=True)
    path.write_bytes(b"anything")
    assert bundles(tmp_path) == [path]
    refuse(monkeypatch, getattr(sparsetune, kind)("It is of no use."))
    assert not sparsetune.spmm(random_csr(50, 40), n=4, tune=False).tuned and not path.exists()


def test_plans_for_numbers_of_calls_are_plans_of_their_own(tmp_path: Path) -> None:
    A = random_csr(50, 40)
    few = sparsetune.spmm(A, n=4, expected_calls=10, wait=True, search=QUICK)
    assert not sparsetune.spmm(A, n=4, tune=False).tuned
    assert sparsetune.spmm(A, n=4, tune=False, expected_calls=10).tuned
    # Nor does the tuner's own memory give the plan for 10 calls.
    usual = sparsetune.spmm(A, n=4, wait=True, search=QUICK)
    assert usual.plan is not None and few.plan is not None and len(bundles(tmp_path)) == 2
    assert usual.plan.manifest["plan"] != few.plan.manifest["plan"]


class FakeServer:
    """A client whose server has a plan for the pattern; what it was asked for is in `said`."""

    url = "http://fake"

    def __init__(self, bundle: Path, first: Any, plan: dict[str, Any]) -> None:
        self.bundle_file, self.first, self.plan = bundle, first, {"id": "old", **plan}
        self.said: list[str] = []

    def __call__(self, *_: Any) -> "FakeServer":
        return self

    def lookup_digest(self, *_: Any, **__: Any) -> sparsetune.Lookup:
        return sparsetune.Lookup("exact", self.plan, (), {})

    def bundle(self, plan: Any, path: Path) -> None:
        which = plan.plan_id if isinstance(plan, sparsetune.Lookup) else plan
        self.said.append(f"bundle {which}")
        if which == "old" and isinstance(self.first, Exception):
            raise self.first
        shutil.copy(self.bundle_file, path)

    def has(self, _: str) -> bool:
        return False

    def upload(self, _: Any) -> None:
        self.said.append("upload")

    def devices(self) -> list[dict[str, Any]]:
        return [{"id": "cpu", "class": _device.device_class("cpu"), "online": True}]

    def submit_digest(self, *_: Any, **more: Any) -> str:
        self.said.append(f"submit {more['expected_calls']}")
        return "new"

    def wait(self, job: str) -> str:
        return job


NEW = ["upload", "submit None", "bundle new"]


@pytest.mark.parametrize("status", [404, 409])
@pytest.mark.parametrize("tune", [True, False])
def test_a_plan_without_a_bundle_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, tune: bool
) -> None:
    A = random_csr(50, 40)
    bundle = kept(A, tmp_path)
    refusal = sparsetune.ServerError("Refused.")
    refusal.status = status
    server = FakeServer(bundle, refusal, {})
    monkeypatch.setattr(sparsetune.client, "Client", server)
    f = sparsetune.spmm(A, n=4, server="http://fake", tune=tune)
    f._finder.done.wait(30)
    assert f.tuned == tune and server.said == ["bundle old", *(NEW if tune else [])]


def test_another_refusal_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    A = random_csr(50, 40)
    refusal = sparsetune.ServerError("No token.")
    refusal.status = 401
    server = FakeServer(kept(A, tmp_path), refusal, {})
    monkeypatch.setattr(sparsetune.client, "Client", server)
    with pytest.raises(sparsetune.ServerError, match="No token"):
        sparsetune.spmm(A, n=4, server="http://fake", wait=True)


def test_a_servers_plan_for_another_number_of_calls_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = random_csr(50, 40)
    server = FakeServer(kept(A, tmp_path), None, {"expected_calls": 10})
    monkeypatch.setattr(sparsetune.client, "Client", server)
    sparsetune.spmm(A, n=4, server="http://fake", wait=True)
    assert server.said == NEW
    server.said.clear()
    sparsetune.spmm(A, n=4, server="http://fake", wait=True, expected_calls=10)
    assert server.said == ["bundle old"]
    server.said.clear()
    sparsetune.spmm(A, n=4, server="http://fake", wait=True, expected_calls=11)
    assert server.said == ["upload", "submit 11", "bundle new"]


@pytest.mark.parametrize("remote", [True, False])
def test_a_plan_that_cannot_take_these_values_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    A = random_csr(50, 40)
    bundle, other = kept(A, tmp_path), kept(A * 2, tmp_path, "other")
    server = FakeServer(other, None, {})
    monkeypatch.setattr(sparsetune.client, "Client", server)
    real = plans.Plan.manifest.func  # type: ignore[attr-defined]

    def manifest(plan: sparsetune.Plan) -> Any:
        return {**real(plan), "update_values": {"kind": "impossible", "reason": "It is so."}}

    monkeypatch.setattr(plans.Plan, "manifest", property(manifest))
    if remote:
        # What the search leaves there next is the plan of these values.
        monkeypatch.setattr(server, "wait", lambda job: setattr(server, "bundle_file", bundle))
        f = sparsetune.spmm(A, n=4, server="http://fake", wait=True)
        assert server.said == ["bundle old", "upload", "submit None", "bundle None"]
    else:
        sparsetune.spmm(A * 2, n=4, wait=True, search=QUICK)
        f = sparsetune.spmm(A, n=4, wait=True, search=QUICK)
    B = numpy.ones((40, 4), "float32")
    assert f.tuned and numpy.allclose(f(B), A @ B, rtol=1e-4, atol=1e-5)


def kept(A: Any, tmp_path: Path, name: str = "plan") -> Path:
    """A bundle for 4 columns, out of the cache, which is emptied."""
    sparsetune.spmm(A, n=4, wait=True, search=QUICK)
    path = tmp_path / f"{name}.stplan"
    shutil.move(bundles(tmp_path)[0], path)
    shutil.rmtree(tmp_path / "cache")
    return path


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("wait", [False, True])
def test_an_operator_goes_with_its_last_name(
    no_collection: None, adjoint: bool, wait: bool
) -> None:
    A, B = random_csr(50, 40), numpy.ones((40, 4), "float32")
    f = sparsetune.spmm(A, n=4, search=QUICK, wait=wait)
    f.wait(60)
    f(B)
    gone = [weakref.ref(f), weakref.ref(f.plan)]
    if adjoint:
        other = f.adjoint()
        other.wait(60)
        assert other.adjoint() is f and f.adjoint() is other
        f.update_values(A.data * 2)
        assert numpy.allclose(other(numpy.ones((50, 4), "float32")).sum(), 8 * A.sum(), rtol=1e-3)
        gone += [weakref.ref(other), weakref.ref(other.plan)]
        del other
    f.update_values(A.data)
    del f
    assert [part() for part in gone] == [None] * len(gone)


def test_an_operator_whose_search_failed_goes_with_its_last_name(no_collection: None) -> None:
    A = random_csr(50, 40)
    f = sparsetune.spmm(A, n=4, server="http://127.0.0.1:9")
    for _ in range(2):
        with pytest.raises(sparsetune.ServerError, match="cannot be reached"):
            f.wait(60)
    f(numpy.ones((40, 4), "float32"))
    gone = weakref.ref(f)
    del f
    assert gone() is None


def test_an_operator_goes_during_its_search(
    no_collection: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(_finder.Finder, "_tune", lambda _: go_on.wait(30))
    f = sparsetune.spmm(random_csr(50, 40), n=4)
    finder, gone = f._finder, weakref.ref(f)
    del f
    assert gone() is None
    go_on.set()
    assert finder.done.wait(30) and finder.error is None


class OneLibrary:
    """An operand of a library of its own."""


class AnotherLibrary:
    """An operand of another library."""


def runner_for(_: Any, b: Any) -> Any:
    """Takes operands of one library only."""
    kind = type(b)

    def run(b: Any, *_: Any) -> str:
        assert type(b) is kind, "the runner of another library"
        return kind.__name__

    return run


@pytest.mark.parametrize("module", [plans, _fallback])
def test_calls_that_meet_between_any_two_steps(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread's call with operands of another library comes between each two steps of a
    call."""
    monkeypatch.setattr(module, "runner_for", runner_for)
    native = SimpleNamespace(run=None)
    one, another = OneLibrary(), AnotherLibrary()
    for step in range(1000):
        if module is plans:
            called: Any = sparsetune.Plan(native)  # type: ignore[arg-type]
        else:
            A = random_csr(4, 4)
            monkeypatch.setattr(_finder._native.Plan, "untuned", lambda *_: native, raising=False)
            source = sparsetune.operator.source_of(A)
            problem = {"op": "spmm", "n": 1, "dtype": "f32", "layout": "row"}
            called = _fallback.Untuned(source, source.matrix(), problem)
        steps = [step]

        def trace(frame: Any, event: str, _: Any) -> Any:
            if frame.f_code is type(called).__call__.__code__:
                frame.f_trace_opcodes = True
                if event == "opcode":
                    steps[0] -= 1
                    # In the lock another thread would wait.
                    held = module is _fallback and called._lock.locked()
                    if steps[0] == -1 and not held:
                        assert called(another) == "AnotherLibrary"
                return trace
            return None

        sys.settrace(trace)
        try:
            assert called(one) == "OneLibrary"
        finally:
            sys.settrace(None)
        assert called(another) == "AnotherLibrary" and called(one) == "OneLibrary"
        if steps[0] >= 0:
            assert step > 10
            return
    raise AssertionError("the call does not end")


def test_a_call_that_is_captured_does_not_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    A, B = random_csr(50, 40), numpy.ones((40, 4), "float32")
    captured = [False]
    monkeypatch.setattr(sparsetune.operator, "capturing", lambda *_: captured[0])
    go_on, whole = threading.Event(), _finder.Finder._tune

    def tune(finder: _finder.Finder) -> sparsetune.Plan:
        go_on.wait(30)
        return whole(finder)

    monkeypatch.setattr(_finder.Finder, "_tune", tune)

    def begun() -> Any:
        go_on.clear()
        f = sparsetune.spmm(A, n=4, search=QUICK)
        f(B)
        captured[0] = True
        go_on.set()
        assert f._finder.done.wait(60) and f.tuned
        f(B)
        assert f._active is None
        return f

    f = begun()
    captured[0] = False
    f(B)
    assert f._active is f.plan
    shutil.rmtree(_cache.folder() / "bundles")
    # Who waits has the plan from the first captured call on.
    f = begun()
    f.wait()
    f(B)
    assert f._active is f.plan
    captured[0] = False
    assert sparsetune.spmm(A, n=4, tune=False)._active is not None


def test_what_is_asked_whether_a_call_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _device.capturing("torch", "cpu")
    for answer in (True, False):
        stream = SimpleNamespace(is_capturing=lambda: answer)
        cupy = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda: stream))
        torch = SimpleNamespace(cuda=SimpleNamespace(is_current_stream_capturing=lambda: answer))
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, "cupy", cupy)
            patched.setitem(sys.modules, "torch", torch)
            assert _device.capturing("cupy", "cuda:0") is answer
            assert _device.capturing("torch", "cuda:0") is answer


FORKED = """
import os, signal, sys, numpy, scipy.sparse, sparsetune
A = scipy.sparse.random(3000, 3000, 0.01, "csr", "float32", random_state=0)
B = numpy.ones((3000, 64), "float32")
if "used" in sys.argv:
    f = sparsetune.spmm(A, n=64, tune=False)
    f(B)
    plan = f._untuned
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
signal.alarm(60)
if "used" not in sys.argv:
    C = sparsetune.spmm(A, n=64, tune=False)(B)
    os._exit(0 if numpy.allclose(C, A @ B, rtol=1e-3, atol=1e-3) else 1)
calls = [
    lambda: f(B), lambda: plan(B), lambda: f.wait(), lambda: f.update_values(A.data),
    lambda: f.adjoint(), lambda: sparsetune.matrix(A), lambda: sparsetune.spmm(A, n=3),
    lambda: sparsetune.load("none.stplan"),
]
for number, call in enumerate(calls):
    try:
        call()
    except sparsetune.Error as error:
        if "`spawn`" in str(error):
            continue
    os._exit(100 + number)
os._exit(0)
"""


@pytest.mark.parametrize("used", ["used", "only imported"])
def test_a_forked_process_is_refused_with_a_sentence(used: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FORKED, used], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, (ended.returncode, ended.stderr)


def test_other_threads_run_while_a_matrix_is_arranged() -> None:
    rng, count = numpy.random.default_rng(0), 2_000_000
    rows, cols = (rng.integers(0, 20000, count).astype("int32") for _ in range(2))
    data = numpy.ones(count)
    ticks, ended = [time.perf_counter()], threading.Event()

    def tick() -> None:
        while not ended.wait(0.001):
            ticks.append(time.perf_counter())

    ticking = threading.Thread(target=tick)
    ticking.start()
    began = time.perf_counter()
    sparsetune.Matrix("coo", (20000, 20000), rows, cols, data)
    whole = time.perf_counter() - began
    ended.set()
    ticking.join()
    assert max(numpy.diff([*ticks, time.perf_counter()])) < whole / 4
