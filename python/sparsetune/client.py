"""A client of a sparsetune server's HTTP API, by the standard library."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union
from urllib.parse import urlencode

from ._http import TIMEOUT, Patience, Transport
from ._native import NotFound, ServerError, TuningError, write_pair
from ._problem import Problem, make_problem
from ._source import as_matrix, as_npz

__all__ = ["AsyncClient", "Client", "Job", "Lookup"]

_FINAL = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class Lookup:
    """The answer to a lookup."""

    #: `exact`, `stale`, `neighbour`, `predicted` or `none`.
    grade: str
    #: The plan as the server describes it (the schema `Plan` of its openapi.yaml), or None.
    plan: Optional[Dict[str, Any]]
    #: Why the grade is not better; empty for `exact`.
    reasons: Tuple[str, ...]
    #: The whole answer.
    raw: Dict[str, Any] = field(repr=False)
    #: For both triangles the plan of the second solve; there are both or neither.
    second: Optional[Dict[str, Any]] = None

    @property
    def plan_id(self) -> Optional[str]:
        """The plan's id, for `Client.bundle`."""
        return None if self.plan is None else str(self.plan["id"])

    @property
    def median_us(self) -> Optional[float]:
        """Measured time of a call in microseconds; None if nothing was measured."""
        measured = None if self.plan is None else self.plan.get("measured")
        return None if measured is None else float(measured["median_us"])


@dataclass(frozen=True)
class Job:
    """A request for a plan, as it stands."""

    id: str
    #: `queued`, `running`, `succeeded`, `failed` or `cancelled`.
    state: str
    #: The plan's id once the job has succeeded.
    plan: Optional[str]
    #: Why the job has failed.
    error: Optional[str]
    raw: Dict[str, Any] = field(repr=False)
    #: For both triangles the plan's id of the second solve, once `Client.wait` has it.
    second: Optional[str] = None

    @property
    def ended(self) -> bool:
        return self.state in _FINAL


class Client(Transport):
    """A server.

    Without `url` the environment variable SPARSETUNE_SERVER names it, and without `token`
    SPARSETUNE_TOKEN does. Methods may be called from several threads.
    """

    def ready(self) -> bool:
        """Whether the server can accept work. False if it cannot be reached."""
        try:
            return self._send("GET", "/readyz")[0] == 200
        except ServerError:
            return False

    def lookup(
        self,
        A: Any,
        op: str = "spmm",
        n: Optional[int] = None,
        *,
        device: Optional[str] = None,
        neighbour: bool = False,
        predicted: bool = True,
        **problem: Any,
    ) -> Lookup:
        """Look up a plan by the matrix's digest, which is computed here: nothing is uploaded.

        `A` is a sparse matrix, a `sparsetune.Matrix`, or a digest. `problem` has the remaining
        fields of the problem: dtype, layout, accumulate, tf32, transpose, output; for `sptrsv` lower,
        unit_diagonal, rhs, stability, approximate, both.
        """
        wanted = make_problem(op, A, n=n, **problem)
        return self.lookup_digest(
            digest_of(A), wanted, device=device, neighbour=neighbour, predicted=predicted
        )

    def lookup_digest(
        self,
        digest: str,
        problem: Problem,
        *,
        device: Optional[str] = None,
        neighbour: bool = False,
        predicted: bool = True,
    ) -> Lookup:
        """As `lookup`, for a digest and a problem of `sparsetune.problem`."""
        query = {"matrix": digest, **{name: _text(value) for name, value in problem.items()}}
        if device is not None:
            query["device"] = device
        if neighbour:
            query["neighbour"] = "true"
        if not predicted:
            query["predicted"] = "false"
        answer = self._json("GET", f"/v1/plans?{urlencode(query)}")
        match = answer.get("match", {})
        return Lookup(
            grade=str(match.get("grade", "none")),
            plan=answer.get("plan"),
            reasons=tuple(match.get("reasons", ())),
            raw=answer,
            second=answer.get("second"),
        )

    def upload(self, A: Any, name: Optional[str] = None) -> Dict[str, Any]:
        """Upload a matrix and return its properties. A matrix that is already stored is not stored
        again."""
        query = "" if name is None else "?" + urlencode({"name": name})
        body = as_npz(as_matrix(A))
        headers = {"content-type": "application/octet-stream"}
        return self._json("POST", f"/v1/matrices{query}", body, headers)

    def has(self, A: Any) -> bool:
        """Whether the server has this matrix."""
        try:
            self._json("GET", f"/v1/matrices/{digest_of(A)}")
        except NotFound:
            return False
        return True

    def submit(
        self,
        A: Any,
        op: str = "spmm",
        n: Optional[int] = None,
        *,
        device: Optional[str] = None,
        search: Optional[Mapping[str, Any]] = None,
        expected_calls: Optional[int] = None,
        upload: bool = True,
        **problem: Any,
    ) -> Job:
        """Submit a job for a plan, after uploading the matrix if the server does not have it."""
        wanted = make_problem(op, A, n=n, **problem)
        if upload and not isinstance(A, str) and not self.has(A):
            self.upload(A)
        return self.submit_digest(
            digest_of(A), wanted, device=device, search=search, expected_calls=expected_calls
        )

    def submit_digest(
        self,
        digest: str,
        problem: Problem,
        *,
        device: Optional[str] = None,
        search: Optional[Mapping[str, Any]] = None,
        expected_calls: Optional[int] = None,
    ) -> Job:
        """As `submit`, for a matrix that the server has."""
        body: Dict[str, Any] = {"matrix": digest, "problem": problem}
        if device is not None:
            body["device"] = device
        if search is not None:
            body["search"] = dict(search)
        if expected_calls is not None:
            body["expected_calls"] = expected_calls
        return _job(self._json("POST", "/v1/jobs", json.dumps(body).encode()))

    def job(self, id: str) -> Job:
        """A job as it stands."""
        return _job(self._json("GET", f"/v1/jobs/{id}"))

    def cancel(self, id: str) -> Job:
        """Cancel a job; a running one ends within two seconds."""
        return _job(self._json("DELETE", f"/v1/jobs/{id}"))

    def wait(
        self, job: Union[Job, str], timeout: Optional[float] = None, pause: float = 0.2
    ) -> Job:
        """Wait for a job's end and return it.

        A server that cannot be reached, or is not ready, is asked again for a quarter of an hour.
        Raises `TuningError` if the job failed or was cancelled, `NotFound` if the server does not
        know it, `TimeoutError` after `timeout` seconds. For both triangles the job of the second is
        waited for, too; `TuningError` if there is none.
        """
        known = job if isinstance(job, Job) else self.job(job)
        poll = _Poll(known.id, timeout, pause)
        first: Optional[Job] = None
        while True:
            while not known.ended:
                time.sleep(poll.pause())
                try:
                    known = self.job(known.id)
                except ServerError as error:
                    poll.failed(error)
                else:
                    poll.answered()
            _has_plan(known)
            following = None if first is not None else _following(known)
            if following is None:
                return known if first is None else replace(first, second=known.plan)
            # Asked by the loop, which has patience with a server that starts again.
            first, known = known, _unknown(following)

    def devices(self) -> List[Dict[str, Any]]:
        """The devices of the server's workers (the schema `WorkerDevice` of its openapi.yaml)."""
        return list(self._json("GET", "/v1/devices").get("items", ()))

    def plan(self, id: str) -> Dict[str, Any]:
        """A plan as the server describes it (the schema `Plan` of its openapi.yaml)."""
        return self._json("GET", f"/v1/plans/{id}")

    def bundle(
        self,
        plan: Union[str, Lookup, Job],
        path: Union[str, "os.PathLike[str]"],
        *,
        values: str = "included",
    ) -> Path:
        """Download a plan's bundle to a file, which `sparsetune.load` runs. The file is complete or
        not there.

        With `values="external"` the matrix's values are left out: `update_values` gives them after
        the plan was loaded. For both triangles, looked up or waited for, it is one file of two
        plans, which one call runs.
        """
        second: Optional[str] = None
        if isinstance(plan, Lookup):
            id = plan.plan_id
            second = None if plan.second is None else str(plan.second["id"])
        elif isinstance(plan, Job):
            id, second = plan.plan, plan.second
        else:
            id = plan
        if id is None:
            raise NotFound("There is no plan whose bundle could be downloaded.")
        target = Path(path)
        if second is None:
            self._download(id, values, target)
            return target
        # A folder of this call's own: threads may write one file.
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            first, other, whole = (Path(folder, name) for name in ("first", "second", "both"))
            self._download(id, values, first)
            self._download(second, values, other)
            write_pair(str(first), str(other), str(whole))
            os.replace(whole, target)
        return target

    def _download(self, id: str, values: str, target: Path) -> None:
        # From the server itself, also where it would send others to its store.
        here = {"sparsetune-redirect": "never"}
        path_of_it = f"/v1/plans/{id}/bundle?{urlencode({'values': values})}"
        body = self._accepted("GET", path_of_it, headers=here)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            partial = Path(folder, "partial")
            partial.write_bytes(body)
            os.replace(partial, target)

    def import_bundle(self, path: Union[str, "os.PathLike[str]"]) -> Dict[str, Any]:
        """Give the server a bundle, whose plan it then answers lookups with."""
        headers = {"content-type": "application/octet-stream"}
        return self._json("POST", "/v1/bundles", Path(path).read_bytes(), headers)


class AsyncClient:
    """`Client` for asyncio: every request runs on a thread, so the event loop is never blocked."""

    def __init__(
        self, url: Optional[str] = None, token: Optional[str] = None, *, timeout: float = TIMEOUT
    ) -> None:
        self.client = Client(url, token, timeout=timeout)

    def __repr__(self) -> str:
        return f"AsyncClient({self.client.url!r})"

    async def ready(self) -> bool:
        """As `Client.ready`."""
        return await asyncio.to_thread(self.client.ready)

    async def lookup(
        self, A: Any, op: str = "spmm", n: Optional[int] = None, **more: Any
    ) -> Lookup:
        """As `Client.lookup`."""
        return await asyncio.to_thread(self.client.lookup, A, op, n, **more)

    async def upload(self, A: Any, name: Optional[str] = None) -> Dict[str, Any]:
        """As `Client.upload`."""
        return await asyncio.to_thread(self.client.upload, A, name)

    async def has(self, A: Any) -> bool:
        """As `Client.has`."""
        return await asyncio.to_thread(self.client.has, A)

    async def submit(self, A: Any, op: str = "spmm", n: Optional[int] = None, **more: Any) -> Job:
        """As `Client.submit`."""
        return await asyncio.to_thread(self.client.submit, A, op, n, **more)

    async def job(self, id: str) -> Job:
        """As `Client.job`."""
        return await asyncio.to_thread(self.client.job, id)

    async def cancel(self, id: str) -> Job:
        """As `Client.cancel`."""
        return await asyncio.to_thread(self.client.cancel, id)

    async def wait(
        self, job: Union[Job, str], timeout: Optional[float] = None, pause: float = 0.2
    ) -> Job:
        """As `Client.wait`; the task may be cancelled meanwhile."""
        known = job if isinstance(job, Job) else await self.job(job)
        poll = _Poll(known.id, timeout, pause)
        first: Optional[Job] = None
        while True:
            while not known.ended:
                await asyncio.sleep(poll.pause())
                try:
                    known = await self.job(known.id)
                except ServerError as error:
                    poll.failed(error)
                else:
                    poll.answered()
            _has_plan(known)
            following = None if first is not None else _following(known)
            if following is None:
                return known if first is None else replace(first, second=known.plan)
            first, known = known, _unknown(following)

    async def devices(self) -> List[Dict[str, Any]]:
        """As `Client.devices`."""
        return await asyncio.to_thread(self.client.devices)

    async def plan(self, id: str) -> Dict[str, Any]:
        """As `Client.plan`."""
        return await asyncio.to_thread(self.client.plan, id)

    async def bundle(
        self,
        plan: Union[str, Lookup, Job],
        path: Union[str, "os.PathLike[str]"],
        *,
        values: str = "included",
    ) -> Path:
        """As `Client.bundle`."""
        return await asyncio.to_thread(self.client.bundle, plan, path, values=values)

    async def import_bundle(self, path: Union[str, "os.PathLike[str]"]) -> Dict[str, Any]:
        """As `Client.import_bundle`."""
        return await asyncio.to_thread(self.client.import_bundle, path)


def digest_of(A: Any) -> str:
    """The digest of a sparse matrix; a string is taken as one."""
    return A if isinstance(A, str) else as_matrix(A).digest


class _Poll:
    """The pauses between two questions for a job."""

    def __init__(self, id: str, timeout: Optional[float], pause: float) -> None:
        self._id, self._timeout, self._usual = id, timeout, pause
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._patience, self._next = Patience(pause), pause

    def pause(self) -> float:
        """Seconds until the next question; raises `TimeoutError` if there is no time left."""
        if self._deadline is None:
            return self._next
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"Job {self._id} has not ended within {self._timeout} seconds.")
        return min(self._next, left)

    def answered(self) -> None:
        self._patience.answered()
        self._next = self._usual

    def failed(self, error: ServerError) -> None:
        """Raises the error if asking again is of no use."""
        self._next = self._patience.pause_after(error)


def _job(raw: Dict[str, Any]) -> Job:
    return Job(
        id=str(raw["id"]),
        state=str(raw["state"]),
        plan=raw.get("plan"),
        error=raw.get("error"),
        raw=raw,
    )


def _has_plan(job: Job) -> None:
    if job.state != "succeeded" or job.plan is None:
        why = job.error or f"it is {job.state}"
        raise TuningError(f"Job {job.id} has no plan: {why.rstrip('.')}.")


def _following(job: Job) -> Optional[str]:
    """The job of the other triangle, if this one is of a request for both."""
    if job.raw.get("then") is None:
        return None
    following = job.raw.get("follow_up")
    if following is None:
        raise TuningError(
            f"Job {job.id} has the plan {job.plan} of the first triangle, but no job was submitted "
            "for the other: its log says why. Ask for both again."
        )
    return str(following)


def _unknown(id: str) -> Job:
    """A job that nothing is known of yet."""
    return Job(id=id, state="queued", plan=None, error=None, raw={})


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
