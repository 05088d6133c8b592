"""Requests to a sparsetune server, by the standard library: answers, refusals, and patience."""

from __future__ import annotations

import http.client
import json
import os
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple
from urllib.parse import urlsplit

from ._native import VERSION, NotFound, ServerError

#: Seconds for connecting and for each read. The server answers every request of this client within
#: less, except uploads, which it reads to the end first.
TIMEOUT = 60.0
_SERVER = "SPARSETUNE_SERVER"
_TOKEN = "SPARSETUNE_TOKEN"
#: Statuses of servers that may answer otherwise a little later.
_PASSING = (408, 425, 429, 500, 502, 503, 504)


def status_of(error: ServerError) -> Optional[int]:
    """The status that the server refused a request with; None if there was no answer."""
    status: Optional[int] = getattr(error, "status", None)
    return status


class Patience:
    """How long a server that does not answer is asked again for the same: ever more rarely."""

    #: Seconds without an answer after which the last error is raised.
    LIMIT = 900.0
    #: Seconds between two questions, at most.
    LONGEST = 30.0

    def __init__(self, pause: float) -> None:
        self._usual = self._pause = pause
        self._since: Optional[float] = None

    def answered(self) -> None:
        """The server answered: patience is whole again."""
        self._pause, self._since = self._usual, None

    def pause_after(self, error: ServerError) -> float:
        """Seconds until the next question; raises the error if asking again is of no use."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        status = status_of(error)
        if status is not None and status not in _PASSING or now - self._since > self.LIMIT:
            raise error
        self._pause = min(max(2 * self._pause, 0.1), self.LONGEST)
        return self._pause


class Transport:
    """The address of a server, and requests to it. Requests may come from several threads."""

    def __init__(
        self, url: Optional[str] = None, token: Optional[str] = None, *, timeout: float = TIMEOUT
    ) -> None:
        url = url or os.environ.get(_SERVER)
        if not url:
            raise ServerError(
                f"No server is named: pass its address, or set the environment variable {_SERVER}."
            )
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ServerError(f"`{url}` is not the address of a server, such as http://host:8080.")
        self.url = url.rstrip("/")
        self._token = token or os.environ.get(_TOKEN) or None
        self._timeout = timeout
        self._parts = parts

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def _json(
        self,
        method: str,
        path: str,
        body: Optional[bytes] = None,
        headers: Optional[Mapping[str, str]] = None,
    ) -> Dict[str, Any]:
        text = self._accepted(method, path, body, headers)
        try:
            answer = json.loads(text)
        except ValueError as error:
            raise ServerError(f"{self.url} did not answer in JSON to {method} {path}.") from error
        if not isinstance(answer, dict):
            raise ServerError(f"{self.url} did not answer with an object to {method} {path}.")
        return answer

    def _accepted(
        self,
        method: str,
        path: str,
        body: Optional[bytes] = None,
        headers: Optional[Mapping[str, str]] = None,
    ) -> bytes:
        status, text = self._send(method, path, body, headers)
        if 200 <= status < 300:
            return text
        said = _problem_text(status, text)
        refusal = (NotFound if status == 404 else ServerError)(
            f"{self.url} refused {method} {path}: {said}"
        )
        refusal.status = status
        raise refusal

    def _send(
        self,
        method: str,
        path: str,
        body: Optional[bytes] = None,
        headers: Optional[Mapping[str, str]] = None,
    ) -> Tuple[int, bytes]:
        sent = {"user-agent": f"sparsetune-python/{VERSION}", "accept": "application/json, */*"}
        if body is not None:
            sent["content-type"] = "application/json"
        if self._token is not None:
            sent["authorization"] = f"Bearer {self._token}"
        sent.update(headers or {})
        parts = self._parts
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        connection = kind(parts.hostname or "", parts.port, timeout=self._timeout)
        try:
            connection.request(method, parts.path.rstrip("/") + path, body, sent)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{self.url} cannot be reached: {error}.") from error
        finally:
            connection.close()


def _problem_text(status: int, text: bytes) -> str:
    """What an RFC 9457 problem says, as a sentence."""
    try:
        problem = json.loads(text)
        said: List[str] = [str(problem[name]) for name in ("title", "detail") if problem.get(name)]
    except (ValueError, TypeError, AttributeError):
        said = []
    pointer = problem.get("pointer") if said else None
    where = f" (at {pointer})" if pointer else ""
    return (": ".join(said) or f"status {status}").rstrip(".") + where + "."
