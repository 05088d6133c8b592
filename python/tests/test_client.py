"""The client against a live server."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest

import sparsetune
from sparsetune import _http
from sparsetune import client as client_module
from conftest import Server, random_csr

SEARCH = {"strategy": "ranked", "top_k": 2, "seconds": 5}


@pytest.fixture
def client(server: Server) -> sparsetune.Client:
    return sparsetune.Client(server.url, server.token)


def test_lookup_upload_submit_wait(client: sparsetune.Client) -> None:
    A = random_csr(200, 150, seed=1)
    assert client.ready() and not client.has(A)
    nothing = client.lookup(A, op="spmm", n=16)
    assert nothing.grade == "none" and nothing.plan is None and nothing.reasons
    stored = client.upload(A, name="a random one")
    assert stored["digest"] == sparsetune.matrix(A).digest and stored["name"] == "a random one"
    job = client.wait(client.submit(A, n=16, search=SEARCH), timeout=120)
    found = client.lookup(A.tocoo(), n=16)
    assert (found.grade, found.plan_id) == ("exact", job.plan)
    # Of two candidates another may be faster, which is said.
    assert len(found.reasons) == 1 and "narrowed (at most 2 of the candidates)" in found.reasons[0]
    assert found.median_us is not None and found.median_us > 0
    assert client.plan(found.plan_id)["id"] == job.plan


def test_without_an_upload_first(client: sparsetune.Client) -> None:
    A = random_csr(120, 120, seed=2)
    job = client.submit(A, n=8, search=SEARCH)
    assert client.has(A)
    assert client.wait(job, timeout=120).ended
    # A small solve alone could end before it is cancelled, so it waits for a product.
    product = client.submit(random_csr(3000, 3000, seed=2), n=256)
    solve = client.submit(A, op="sptrsv", unit_diagonal=True, dtype="f64")
    assert solve.raw["problem"]["diagonal"] == "unit"
    for job in (solve, product):
        client.cancel(job.id)
    with pytest.raises(sparsetune.TuningError, match="cancelled"):
        client.wait(solve, timeout=30)


@pytest.mark.parametrize("transpose", [False, True])
def test_both_triangles_by_one_request(
    client: sparsetune.Client, server: Server, tmp_path: Path, transpose: bool
) -> None:
    F = random_csr(90, 90, seed=5, dtype="float64") * 0.1
    F.setdiag(numpy.arange(90) % 5 + 2.0)
    F = F.tocsr()
    wanted: dict[str, Any] = dict(op="sptrsv", both=True, unit_diagonal=True, transpose=transpose)
    assert client.lookup(F, **wanted, predicted=False).grade == "none"
    search = {"trials": 4, "seconds": 8}
    job = client.submit(F, **wanted, search=search)
    assert job.raw["then"]["triangle"] == ("lower" if transpose else "upper")
    if transpose:
        waiting = sparsetune.AsyncClient(server.url, server.token)
        job = asyncio.run(waiting.wait(job.id, timeout=120))
    else:
        job = client.wait(job, timeout=120)
    found = client.lookup(F, **wanted)
    assert found.second is not None
    assert (found.plan_id, found.second["id"]) == (job.plan, job.second)
    for source in (job, found):
        plan = sparsetune.load(client.bundle(source, tmp_path / "both.stplan"))
        assert plan.check().passed and plan.problem["triangle"] == "both"
    assert list(tmp_path.iterdir()) == [tmp_path / "both.stplan"]
    dense, b = F.toarray(), numpy.ones(90)
    M = (numpy.tril(dense, -1) + numpy.eye(90)) @ numpy.triu(dense)
    assert abs((M.T if transpose else M) @ plan(b) - b).max() < 1e-11
    # An operator takes the two plans that are there.
    f = sparsetune.ilu(F, transpose=transpose, server=server.url, token=server.token, tune=False)
    assert f.wait(60).manifest["parts"][0]["plan"] == job.plan


def test_asynchronously(server: Server) -> None:
    async def work() -> str:
        client = sparsetune.AsyncClient(server.url, server.token)
        A = random_csr(90, 80, seed=3)
        assert (await client.lookup(A, n=4)).grade == "none"
        job = await client.submit(A, n=4, search=SEARCH)
        await client.wait(job, timeout=120)
        return (await client.lookup(A, n=4)).grade

    assert asyncio.run(work()) == "exact"


def test_refusals_are_sentences(server: Server, client: sparsetune.Client) -> None:
    A = random_csr(30, 20, seed=4)
    with pytest.raises(sparsetune.ServerError, match="token"):
        sparsetune.Client(server.url, "wrong").lookup(A, n=8)
    with pytest.raises(sparsetune.NotFound):
        client.plan("00000000-0000-7000-8000-000000000000")
    with pytest.raises(sparsetune.ServerError, match="square"):
        client.submit(A, op="sptrsv", dtype="f64")
    with pytest.raises(sparsetune.ServerError, match="cannot be reached"):
        sparsetune.Client("http://127.0.0.1:9").lookup(A, n=8)
    assert not sparsetune.Client("http://127.0.0.1:9").ready()
    with pytest.raises(sparsetune.ServerError, match="SPARSETUNE_SERVER"):
        sparsetune.Client()
    with pytest.raises(sparsetune.OperandError, match="needs n"):
        client.lookup(A)
    with pytest.raises(sparsetune.OperandError, match="positive"):
        client.lookup(A, n=0)
    with pytest.raises(sparsetune.OperandError, match="layout"):
        client.lookup(A, n=8, layout="diagonal")
    with pytest.raises(sparsetune.OperandError, match="f16, bf16, f32 or f64"):
        client.lookup(A, n=8, dtype="int8")


def test_a_bundle_from_a_server_and_back(client: sparsetune.Client, tmp_path: Path) -> None:
    A = random_csr(80, 70, seed=5)
    job = client.wait(client.submit(A, n=3, search=SEARCH), timeout=120)
    path = client.bundle(job, tmp_path / "plan.stplan")
    plan = sparsetune.load(path)
    assert plan.check().passed and plan.manifest["plan"] == job.plan
    assert [file.name for file in path.parent.iterdir() if file.is_file()] == ["plan.stplan"]
    external = sparsetune.load(client.bundle(job, tmp_path / "external.stplan", values="external"))
    B = numpy.ones((70, 3), "float32")
    with pytest.raises(sparsetune.OperandError, match="without values"):
        external(B)
    external.update_values(A)
    assert (external(B) == plan(B)).all()
    client.import_bundle(path)
    assert client.lookup(A, n=3).plan_id == job.plan
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(sparsetune.ServerError):
        client.import_bundle(path)
    with pytest.raises(sparsetune.NotFound, match="no plan"):
        client.bundle(client.lookup(random_csr(9, 9, seed=6), n=3, predicted=False), path)


def test_an_operator_asks_its_server(
    server: Server, client: sparsetune.Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    A = random_csr(90, 60, seed=7)
    B = numpy.ones((60, 6), "float32")
    # Uploaded and tuned there.
    f = sparsetune.spmm(A, n=6, server=server.url, token=server.token, wait=True, search=SEARCH)
    assert f.tuned and client.lookup(A, n=6).grade == "exact"
    # Taken from there by a user who has nothing on disk, and may not tune.
    monkeypatch.setenv("SPARSETUNE_CACHE", str(tmp_path / "another"))
    monkeypatch.setenv("SPARSETUNE_SERVER", server.url)
    monkeypatch.setenv("SPARSETUNE_TOKEN", server.token)
    again = sparsetune.spmm(A, n=6, tune=False, wait=True)
    assert (again(B) == f(B)).all()
    # Without the server, from disk.
    monkeypatch.setenv("SPARSETUNE_SERVER", "http://127.0.0.1:9")
    assert sparsetune.spmm(A, n=6, tune=False).tuned
    with pytest.raises(sparsetune.ServerError, match="cannot be reached"):
        sparsetune.spmm(A, n=7, wait=True)


def test_a_matrix_that_was_deleted_is_uploaded_again(
    server: Server, client: sparsetune.Client
) -> None:
    A = random_csr(60, 50, seed=8)
    client.wait(client.submit(A, n=5, search=SEARCH), timeout=120)
    deleted = client._send("DELETE", f"/v1/matrices/{sparsetune.matrix(A).digest}")
    assert deleted[0] == 204 and client.lookup(A, n=5).grade == "exact"
    with pytest.raises(sparsetune.Error, match="has no plan"):
        sparsetune.spmm(A, n=5, server=server.url, token=server.token, tune=False, wait=True)
    f = sparsetune.spmm(A, n=5, server=server.url, token=server.token, wait=True, search=SEARCH)
    assert f.tuned and client.has(A)


def half(id: str, plan: Any = None, follow_up: Any = None, then: bool = True) -> sparsetune.Job:
    raw: dict[str, Any] = {"then": {}} if then else {}
    if follow_up is not None:
        raw["follow_up"] = follow_up
    return sparsetune.Job(id, "running" if plan is None else "succeeded", plan, None, raw)


@pytest.mark.parametrize("kind", [sparsetune.Client, sparsetune.AsyncClient])
def test_a_server_that_starts_again_between_two_jobs_is_waited_for(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = kind("http://127.0.0.1:9")
    answers: list[Any] = []
    asked: list[str] = []

    def poll(id: str) -> sparsetune.Job:
        asked.append(id)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        found: sparsetune.Job = answer
        return found

    def wait() -> sparsetune.Job:
        waited = client.wait(half("first"), pause=0.01)
        found: sparsetune.Job = asyncio.run(waited) if asyncio.iscoroutine(waited) else waited
        return found

    monkeypatch.setattr(getattr(client, "client", client), "job", poll)
    answers = [half("first", "L", "second"), refusal(0), refusal(503)]
    answers += [half("second", then=False), half("second", "U", then=False)]
    found = wait()
    assert (found.id, found.plan, found.second) == ("first", "L", "U") and not answers
    assert asked == ["first"] + ["second"] * 4
    # There may be none, and what there is is said.
    answers = [half("first", "L")]
    with pytest.raises(sparsetune.TuningError, match="plan L of the first triangle.*log says why"):
        wait()


def test_threads_may_write_one_file_of_two_plans(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client = sparsetune.Client("http://127.0.0.1:9")
    together = threading.Barrier(4)

    def download(id: str, values: str, target: Path) -> None:
        target.write_text(id)
        together.wait(30)

    def join(first: str, second: str, whole: str) -> None:
        Path(whole).write_text(Path(first).read_text() + Path(second).read_text())

    monkeypatch.setattr(client, "_download", download)
    monkeypatch.setattr(client_module, "write_pair", join)
    target = tmp_path / "both.stplan"
    jobs = [sparsetune.Job("a job", "succeeded", "L", None, {}, str(at)) for at in range(4)]
    with ThreadPoolExecutor(4) as pool:
        written = list(pool.map(lambda one: client.bundle(one, target), jobs))
    assert written == [target] * 4
    assert target.read_text() in {f"L{at}" for at in range(4)}
    assert list(tmp_path.iterdir()) == [target]


def refusal(status: int) -> sparsetune.ServerError:
    error = (sparsetune.NotFound if status == 404 else sparsetune.ServerError)("Refused.")
    if status:
        error.status = status
    return error


def job(state: str) -> sparsetune.Job:
    return sparsetune.Job("a job", state, "a plan" if state == "succeeded" else None, None, {})


@pytest.mark.parametrize("kind", [sparsetune.Client, sparsetune.AsyncClient])
def test_a_failed_poll_does_not_end_the_wait(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = kind("http://127.0.0.1:9")
    answers: list[Any] = []

    def poll(_: str) -> sparsetune.Job:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        found: sparsetune.Job = answer
        return found

    def wait(timeout: Any = None) -> sparsetune.Job:
        waited = client.wait(job("running"), timeout, pause=0.01)
        found: sparsetune.Job = asyncio.run(waited) if asyncio.iscoroutine(waited) else waited
        return found

    monkeypatch.setattr(getattr(client, "client", client), "job", poll)
    answers = [refusal(0), refusal(503), job("running"), refusal(502), job("succeeded")]
    assert wait().plan == "a plan" and not answers
    for final in (404, 401):
        answers = [refusal(0), refusal(final)]
        with pytest.raises(sparsetune.ServerError) as raised:
            wait()
        assert _http.status_of(raised.value) == final and not answers
    answers = [refusal(0)] * 50
    with pytest.raises(TimeoutError):
        wait(0.2)
    monkeypatch.setattr(_http.Patience, "LIMIT", 0.15)
    answers = [refusal(0)] * 50
    with pytest.raises(sparsetune.ServerError, match="Refused"):
        wait()
