"""The server as the tests know it: its API over plain HTTP, and a process of its own where a test needs to end it."""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FINAL = ("succeeded", "failed", "cancelled")
# One number for all waits: long enough for a debug build on a busy machine, and never slept through.
PATIENCE_S = int(os.environ.get("PATIENCE_S", "60"))


class Api:
    """A client of /v1, to prepare what a test needs and to compare pages with."""

    def __init__(self, url, token=None):
        self.url, self.token = url, token

    def request(self, method, path, body=None, kind="application/json"):
        headers = {"Content-Type": kind} if body is not None else {}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(self.url + path, method=method, data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return json.loads(response.read())

    def get(self, path):
        return self.request("GET", path)

    def upload(self, text, name):
        path = f"/v1/matrices?name={urllib.parse.quote(name)}"
        return self.request("POST", path, text, "application/octet-stream")["digest"]

    def submit(self, digest, problem, **rest):
        body = {"matrix": digest, "problem": problem, "device": "cpu", **rest}
        return self.request("POST", "/v1/jobs", json.dumps(body).encode())["id"]

    def cancel(self, job):
        return self.request("DELETE", f"/v1/jobs/{job}")

    def job(self, job):
        return self.get(f"/v1/jobs/{job}")

    def ended(self, job):
        """The job once it has ended."""
        return until(lambda: (told := self.job(job))["state"] in FINAL and told, f"the end of job {job}")

    def trained(self, op, seed):
        """The model of a training that puts it to use."""
        body = json.dumps({"op": op, "seed": seed, "activate": "always"}).encode()
        told = self.ended(self.request("POST", "/v1/models/train", body)["id"])
        assert told["state"] == "succeeded" and told["activated"], told
        return told["model"]

    def tried(self, job):
        """Ordinals of the trials that ran."""
        found, cursor = [], ""
        while True:
            page = self.get(f"/v1/jobs/{job}/trials?limit=500{cursor}")
            found += [int(trial["id"].split("/")[1]) for trial in page["items"] if trial["state"] != "pruned"]
            if not page.get("next"):
                return sorted(found)
            cursor = "&cursor=" + urllib.parse.quote(page["next"])


def until(condition, what):
    """The first true value of the condition; fails after a while."""
    end = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {PATIENCE_S} s for {what}"
        time.sleep(0.05)
    return value


class Process:
    """A server of the test's own, on a data folder that outlives it."""

    def __init__(self, folder, **settings):
        self.folder, self.settings, self.listen, self.process = folder, settings, "127.0.0.1:0", None
        self.start()

    def start(self):
        """Starts it, from the second time on at the address of the first."""
        program = os.environ.get("SPARSETUNE", str(ROOT / "target/debug/sparsetune"))
        command = [program, "serve", "--listen", self.listen, "--data", str(self.folder / "data")]
        environment = {**os.environ, "SPARSETUNE_DEVICES__USE": '["cpu"]', **self.settings}
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), (self.folder / "log").read_text()[-2000:]
        self.url = line.removeprefix("listening on ").strip()
        self.listen = self.url.removeprefix("http://")
        until(self.ready, "the server to be ready")

    def ready(self):
        try:
            with urllib.request.urlopen(self.url + "/readyz", timeout=5) as response:
                return response.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.stdout.close()
        assert code == 0, f"the server ended with {code}"


def band(rows):
    """Matrix Market text of a small band; `rows` tells one from another."""
    entries = [(r, c) for r in range(1, rows + 1) for c in (r - 1, r, r + 7) if 1 <= c <= rows]
    head = f"%%MatrixMarket matrix coordinate real general\n{rows} {rows} {len(entries)}\n"
    return (head + "".join(f"{r} {c} {1.5 if r == c else 0.25}\n" for r, c in entries)).encode()
