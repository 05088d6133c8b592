"""A cluster for `simulate.py`: servers, workers that play a recording, their clients, and who watches them. Standard library only."""

import collections
import http.client
import json
import os
import pathlib
import random
import signal
import sqlite3
import subprocess
import threading
import time
import uuid

from simulation_hosts import Bucket, Impossible, Network, Postgres, Process, tree

FAKETIME = pathlib.Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
PATIENCE_S = 30
SETTINGS = {
    "SPARSETUNE_SERVER__INSECURE": "true", "SPARSETUNE_DEVICES__LOCK_DIR": "", "SPARSETUNE_LEARNING__RETRAIN_TRIALS": "0",
    "SPARSETUNE_LEARNING__SHIPPED": "false", "SPARSETUNE_DRIFT__CHECK_H": "0", "SPARSETUNE_DRIFT__RENEWALS_PER_DAY": "0",
    "SPARSETUNE_SERVER__UPLOADS_PER_CLIENT": "4", "SPARSETUNE_WORKER__MAX_HOST_BYTES": "1000000000",
    "SPARSETUNE_SERVER__READING_BYTES": "1000000000", "SPARSETUNE_DATA__MIN_FREE_BYTES": "100000000",
    "SPARSETUNE_POSTGRES__CONNECTIONS": "6",
}
SEARCH = {"strategy": "ranked", "top_k": 8, "trials": 12, "seconds": 30}
WIDTHS = (8, 32)


def matrix(seed, n=300):
    """A small matrix in Matrix Market's text, by a seed."""
    rng = random.Random(seed)
    entries = {(i, i): 8.0 + rng.random() for i in range(n)}
    for _ in range(n * 4):
        entries.setdefault((rng.randrange(n), rng.randrange(n)), rng.random())
    lines = [f"{i + 1} {j + 1} {v:.6f}" for (i, j), v in entries.items()]
    return f"%%MatrixMarket matrix coordinate real general\n{n} {n} {len(lines)}\n" + "\n".join(lines) + "\n"


def record(binary, folder, latency_ms):
    """Searches on the processor, and what its candidates did as a recording: the device first, then a line for each."""
    opened = subprocess.run(
        [binary, "evaluator", "--device", "cpu", "--fence", "off"], input='{"seq":1,"request":"open","protocol":2}\n',
        capture_output=True, text=True, timeout=PATIENCE_S,
    )
    device = find(json.loads(opened.stdout.splitlines()[-1]), "copy_gbps")
    (folder / "matrix.mtx").write_text(matrix(0))
    acts = {}
    for n in WIDTHS:
        subprocess.run(
            [binary, "tune", folder / "matrix.mtx", "--n", str(n), "--strategy", "exhaustive", "--device", "cpu", "--data", folder / "first"],
            check=True, capture_output=True, timeout=300,
        )
    for (text,) in sqlite3.connect(folder / "first/sparsetune.db").execute("SELECT body FROM trials"):
        trial = json.loads(text)
        state = trial["state"]
        samples = state["timing"]["samples_us"] if state.get("state") == "measured" else [50.0 + len(acts)] * 40
        acts[json.dumps(trial["candidate"], sort_keys=True)] = {
            "candidate": trial["candidate"], "does": "measured", "samples_us": samples, "rel_error": 1e-8, "latency_ms": latency_ms,
        }
    path = folder / "recording.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in [{"device": device}, *acts.values()]) + "\n")
    path.chmod(0o644)
    return path, device["id"], len(acts)


def find(value, key):
    """The first object within a JSON value that has this key."""
    if isinstance(value, dict):
        if key in value:
            return value
        value = list(value.values())
    if isinstance(value, list):
        return next((found for found in (find(part, key) for part in value) if found), None)
    return None


class Client:
    """Asks the servers in turn, again and again until one answers; counts what came instead."""

    def __init__(self, addresses, answers):
        self.addresses, self.answers, self.at, self.connection = addresses, answers, random.randrange(len(addresses)), None

    def ask(self, method, path, body=None, headers=None, until=None):
        while True:
            try:
                if self.connection is None:
                    host, port = self.addresses[self.at % len(self.addresses)]
                    self.connection = http.client.HTTPConnection(host, port, timeout=10)
                self.connection.request(method, path, body, headers or {})
                answer = self.connection.getresponse()
                text = answer.read()
                self.answers[answer.status] += 1
                if answer.status < 500 and answer.status != 429:
                    return answer.status, text
            except (OSError, http.client.HTTPException) as error:
                self.answers[type(error).__name__] += 1
            if self.connection:
                self.connection.close()
            self.connection, self.at = None, self.at + 1
            if until and time.monotonic() > until:
                raise OSError(f"{method} {path}: no answer")
            time.sleep(0.2)


class Cluster:
    """Servers, workers, and what they share."""

    def __init__(self, options, folder):
        self.options, self.folder, self.binary = options, folder, options.binary.resolve()
        self.processes, self.network = {}, Network()
        self.store = self.bucket = None
        self.recording, self.device, self.candidates = record(self.binary, folder, options.latency_ms)

    def on_postgres(self, clients):
        self.store = Postgres(self.network, self.folder / "postgres", clients=clients)
        self.bucket = Bucket(self.network, self.folder / "s3", self.options.s3.resolve())
        self.shared = {**SETTINGS, **self.bucket.environment()}

    def on_file(self):
        self.shared = {**SETTINGS, "SPARSETUNE_DATA__DIR": str(self.folder / "data")}

    def settings(self, name, pooled):
        own = {**self.shared, "SPARSETUNE_WORKER__NAME": name, "SPARSETUNE_WORKER__LEASE_MS": str(self.options.lease_ms), "TZ": "UTC"}
        if self.store:
            own |= {"SPARSETUNE_DATA__DIR": str(self.folder / name), "SPARSETUNE_DATA__STORE": self.store.url(pooled)}
            own |= {"SPARSETUNE_POSTGRES__POOLED": "true"} if pooled else {}
        return own

    def server(self, name, skew=0):
        address = self.network.host(name)
        settings = {**self.settings(name, pooled=False), "SPARSETUNE_DEVICES__USE": "[]", **skewed(skew)}
        self.processes[name] = Process(self.network, name, [self.binary, "serve", "--listen", f"{address}:8080"], self.folder / f"{name}.log", settings)
        return address, 8080

    def worker(self, name, skew=0):
        self.network.host(name)
        settings = {**self.settings(name, pooled=True), "SPARSETUNE_DEVICES__USE": json.dumps([f"replay:{self.recording}"]), **skewed(skew)}
        self.processes[name] = Process(self.network, name, [self.binary, "worker", "--name", name], self.folder / f"{name}.log", settings)

    def ready(self, address):
        words = [self.binary, "ready", "--server", f"http://{address[0]}:{address[1]}", "--wait", "90"]
        if subprocess.run(words, stdout=subprocess.DEVNULL).returncode:
            raise Impossible(f"the server on {address[0]} did not become ready: see {self.folder}")

    def end(self):
        """Ends servers and workers as an operator does; their exit statuses, by number."""
        for process in self.processes.values():
            process.signal(signal.SIGCONT)
            process.signal(signal.SIGTERM)
        return collections.Counter(str(process.end()) for process in self.processes.values())

    def clear(self):
        pids = [pid for process in self.processes.values() for pid in tree(process.pid)]
        for pid in pids + (self.store.pids() if self.store else []):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self.bucket:
            self.bucket.end()
        time.sleep(0.5)
        self.network.remove()


def skewed(seconds):
    """What shifts the clock of a process; nothing where libfaketime is missing."""
    if not seconds or not FAKETIME.exists():
        return {}
    return {"LD_PRELOAD": str(FAKETIME), "FAKETIME": f"{seconds:+d}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}


class Load:
    """Submits jobs until so many were acknowledged, with so many waiting at most; uploads a matrix for each twenty."""

    def __init__(self, addresses, wanted, waiting, ended, threads=6):
        self.addresses, self.wanted, self.waiting, self.ended = addresses, wanted, waiting, ended
        self.lock, self.acknowledged, self.problems = threading.Lock(), {}, []
        self.answers, self.begun, self.stopped = collections.Counter(), 0, False
        self.threads = [threading.Thread(target=self.work, daemon=True) for _ in range(threads)]
        for thread in self.threads:
            thread.start()

    def work(self):
        client, digests = Client(self.addresses, self.answers), {}
        while not self.stopped:
            with self.lock:
                if self.begun >= self.wanted:
                    return
                number, self.begun = self.begun, self.begun + 1
            while number - self.ended() > self.waiting and not self.stopped:
                time.sleep(0.1)
            seed = number // 20
            if seed not in digests:
                status, text = client.ask("POST", "/v1/matrices", matrix(seed), {"content-type": "text/plain"})
                if status not in (200, 201):
                    self.problems.append(f"upload: {status} {text[:200]}")
                    continue
                digests = {seed: json.loads(text)["digest"]}
            problem = {"op": "spmm", "n": WIDTHS[number % len(WIDTHS)], "dtype": "f32", "layout": "row"}
            # The number makes it a job of its own.
            body = {"matrix": digests[seed], "problem": problem, "search": SEARCH, "expected_calls": 1000 + number, "device": "auto"}
            headers = {"content-type": "application/json", "idempotency-key": str(uuid.uuid4())}
            status, text = client.ask("POST", "/v1/jobs", json.dumps(body), headers)
            if status in (200, 201, 202):
                with self.lock:
                    self.acknowledged[json.loads(text)["id"]] = number
            else:
                self.problems.append(f"job: {status} {text[:300]}")


class Watch:
    """Asks the database how many jobs have ended, about twice a second, and remembers when it was how many."""

    def __init__(self, store):
        self.store, self.points, self.stopped = store, [(time.monotonic(), 0)], False
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self):
        while not self.stopped:
            try:
                count = int(self.store.ask("SELECT count(*) FROM jobs WHERE state NOT IN ('queued', 'running')", 3)[0][0])
                self.points.append((time.monotonic(), count))
            except (OSError, subprocess.TimeoutExpired, IndexError):
                pass
            time.sleep(0.5)

    def ended(self):
        return self.points[-1][1]

    def next_after(self, moment, most=180):
        """Seconds from a moment until another job had ended; `None` if none did in time."""
        known = max((count for at, count in self.points if at <= moment), default=0)
        until = moment + most
        while time.monotonic() < until:
            for at, count in self.points:
                if at > moment and count > known:
                    return at - moment
            time.sleep(0.2)
        return None

    def longest_pause(self, begin, end):
        pause, last_at, last = 0.0, begin, None
        for at, count in self.points:
            if at < begin or at > end:
                continue
            if count != last:
                pause, last_at, last = max(pause, at - last_at), at, count
        return max(pause, end - last_at)
