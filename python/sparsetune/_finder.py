"""Finds the plan of one operator: on disk, on a server, or by tuning here."""

from __future__ import annotations

import copy
import logging
import os
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Optional, Tuple

from . import _cache, _native
from ._http import status_of
from ._native import (
    BundleError,
    Error,
    Matrix,
    OperandError,
    ServerError,
    StalePlan,
    TuningError,
    WrongDevice,
    WrongPattern,
)
from ._device import device_class, libraries
from ._problem import Problem, to_json
from ._program import command
from .plan import Plan

if TYPE_CHECKING:
    from .client import Client, Lookup

logger = logging.getLogger("sparsetune")


class OtherValues(Error):
    """A plan was made with other values than this matrix has, and cannot take these."""


#: What is wrong with a bundle that has to be made again. With any other error the bundle is sound,
#: and another one would do no better.
_MADE_AGAIN = (BundleError, StalePlan, WrongDevice, WrongPattern, OtherValues)


@dataclass(frozen=True)
class Options:
    """How a plan is looked for and made."""

    server: Optional[str] = None
    token: Optional[str] = None
    #: Of the search: strategy, top_k, trials, seconds.
    search: Optional[Mapping[str, Any]] = None
    expected_calls: Optional[int] = None
    #: CUDA libraries, or folders with them, that come before the system's.
    libraries: Tuple[str, ...] = ()
    #: Whether a miss is tuned.
    tune: bool = True


def waits(problem: Problem, asked: Optional[bool]) -> bool:
    """Whether an operator waits for its plan. An approximate one does: calls before would be exact,
    and a solver that runs meanwhile would have two preconditioners."""
    if not problem.get("approximate"):
        return bool(asked)
    if asked is not None and not asked:
        raise OperandError(
            "An approximate operator waits for its plan, so that x is the same map of b in each "
            "call: until then calls would be exact. Leave out wait=False, or approximate=True."
        )
    return True


class Finder:
    """One search for one plan, on a thread of its own or the caller's."""

    def __init__(
        self,
        matrix: Matrix,
        problem: Problem,
        device: str,
        options: Options,
        found: Callable[[Plan], None],
    ) -> None:
        self.matrix, self.problem, self.device, self.options = matrix, problem, device, options
        _native.check_process()
        self.path = _cache.bundle_path(
            matrix.digest, problem, device_class(device), options.expected_calls
        )
        #: Why there is no plan.
        self.error: Optional[Exception] = None
        self.done = threading.Event()
        # Weak: who waits for no plan any more need not be kept by the search.
        self._found = weakref.WeakMethod(found)
        self._started = False

    def on_disk(self) -> bool:
        """Takes the plan that is kept on disk, if it is sound and not stale. False if the search
        has to go on."""
        if not self.path.is_file():
            return False
        try:
            plan = self._load()
        except _MADE_AGAIN as error:
            logger.warning("%s is made again: %s", self.path, error)
            self.path.unlink(missing_ok=True)
            return False
        except Error as error:
            self._fail(Error(f"{self.path} cannot be loaded: {error}"))
            return True
        self._take(plan)
        return True

    def start(self) -> None:
        """Looks further on a thread of its own."""
        if not self._started:
            self._started = True
            threading.Thread(target=self.run, name="sparsetune", daemon=True).start()

    def run(self) -> None:
        """Asks the server, or tunes here; remembers an error instead of raising it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            server = self.options.server or os.environ.get("SPARSETUNE_SERVER")
            self._take(self._ask(server) if server else self._tune())
        except Exception as error:  # Whatever it is, `wait` raises it.
            if not isinstance(error, Misses):
                logger.warning("There is no plan for %s: %s", self.problem, error)
            self._fail(error)

    def failure(self) -> Exception:
        """Why there is no plan, to be raised: a copy, since what is raised keeps the frames that it
        passes, and with them what they hold."""
        if self.error is None:
            return OperandError("There is no plan.")
        return copy.copy(self.error)

    def _fail(self, error: Exception) -> None:
        part: Optional[BaseException] = error
        while part is not None:
            part = part.with_traceback(None).__cause__ or part.__context__
        self.error = error
        self.done.set()

    def _load(self) -> Plan:
        native = _native.Plan.load(str(self.path), self.device, libraries(self.options.libraries))
        plan = Plan(native)
        plan.expect_pattern(self.matrix)
        # Plans are found by pattern: this one may have been measured with other values.
        if plan.manifest["matrix"]["digest"] != self.matrix.digest:
            if plan.manifest["update_values"]["kind"] == "impossible":
                raise OtherValues(
                    "The plan was made with other values than this matrix has, and cannot take new "
                    "ones."
                )
            plan.update_values(self.matrix.arrays()[2])
        for warning in plan.warnings:
            logger.info("%s: %s", self.path, warning)
        return plan

    def _take(self, plan: Plan) -> None:
        found = self._found()
        if found is not None:
            found(plan)
        # This thread is not to be the last that has them once others know that it is done.
        del found, plan
        self.done.set()

    def _ask(self, server: str) -> Plan:
        from .client import Client

        client = Client(server, self.options.token)
        wanted = device_class(self.device)
        digest = self.matrix.digest
        found = client.lookup_digest(digest, self.problem, device=wanted, predicted=False)
        plan = self._from(client, found)
        if plan is not None:
            return plan
        if not self.options.tune:
            raise Misses(f"{server} has no plan for this problem.")
        if not client.has(digest):
            client.upload(self.matrix)
        job = client.submit_digest(
            digest,
            self.problem,
            device=self._worker(client, wanted),
            search=self.options.search,
            expected_calls=self.options.expected_calls,
        )
        client.bundle(client.wait(job), self.path)
        return self._load()

    def _from(self, client: "Client", found: "Lookup") -> Optional[Plan]:
        """The plan that the server has, if it is what was asked for and can be used here."""
        if found.grade != "exact" or found.plan is None:
            return None
        # A key has one answer, whatever calls it was made for.
        plans = [found.plan] if found.second is None else [found.plan, found.second]
        if any(plan.get("expected_calls") != self.options.expected_calls for plan in plans):
            return None
        try:
            client.bundle(found, self.path)
            return self._load()
        except _MADE_AGAIN as error:
            self.path.unlink(missing_ok=True)
            why: Exception = error
        except ServerError as error:
            # Deleted meanwhile, or without what a bundle needs: its matrix, which is uploaded.
            if status_of(error) not in (404, 409):
                raise
            why = error
        logger.warning("The server's plan %s is made again: %s", found.plan_id, why)
        return None

    @staticmethod
    def _worker(client: "Client", wanted: str) -> str:
        """The server's device of this class: a job names a device, a plan is good for its class."""
        fitting = [device for device in client.devices() if device.get("class") == wanted]
        device = min(fitting, key=lambda device: not device.get("online"), default=None)
        if device is None:
            raise TuningError(
                f"{client.url} has no device of the class {wanted}, so it cannot tune."
            )
        return str(device["id"])

    def _tune(self) -> Plan:
        if not self.options.tune:
            raise Misses("No plan is kept on disk for this problem, and no server is named.")
        with tuner(self.device, tuple(libraries(self.options.libraries))) as native:

            def tune(again: bool) -> Plan:
                native.tune(
                    self.matrix,
                    to_json(self.problem),
                    None if self.options.search is None else to_json(self.options.search),
                    self.options.expected_calls,
                    str(self.path),
                    again,
                )
                return self._load()

            try:
                return tune(again=False)
            except OtherValues:
                # Known by its pattern, but of no use.
                return tune(again=True)


class Misses(Error):
    """There is no plan, and none is made."""


class tuner:
    """The tuner of a device, shared by those who use it at the same time."""

    _lock = threading.Lock()
    _open: Dict[Tuple[str, str, Tuple[str, ...]], Tuple[_native.Tuner, int]] = {}

    def __init__(self, device: str, libraries: Tuple[str, ...] = ()) -> None:
        self._key = (str(_cache.tuner_folder()), device, libraries)

    def __enter__(self) -> _native.Tuner:
        folder, device, libraries = self._key
        with self._lock:
            if self._key in self._open:
                native, users = self._open[self._key]
            else:
                Path(folder).mkdir(parents=True, exist_ok=True)
                program, *leading = command()
                native = _native.Tuner(folder, device, (program, leading), list(libraries))
                users = 0
            self._open[self._key] = (native, users + 1)
        return native

    def __exit__(self, *_: object) -> None:
        with self._lock:
            native, users = self._open.pop(self._key)
            if users > 1:
                self._open[self._key] = (native, users - 1)
                return
        native.close()
