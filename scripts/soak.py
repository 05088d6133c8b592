#!/usr/bin/env python3
"""Loads a real server as its users would, for long, and says what it lost, refused and how it grew. Standard library only.

    scripts/soak.py kills   --kills 100      SIGKILL of server, worker and evaluator in turn at random moments, under load
    scripts/soak.py clients --minutes 10     32 clients at once: latencies, statuses, errors of locks, growth by the hour

Both start `sparsetune serve` without devices and `sparsetune worker --device cpu` on a folder of their own, and end with a
table. `kills` exits with 1 if anything that was acknowledged is missing, changed or there twice; `clients` if any answer was
none of 200, 201, 202, 429 and 503, or the log has an error of a lock.
"""

import argparse
import collections
import http.client
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

from soak_service import PATIENCE_S, Service


def matrix(rng):
    """A small system in Matrix Market's text: a lower triangle with a full, dominant diagonal, so that both operations apply."""
    n = rng.randrange(50, 900)
    entries = {(i, i): 8.0 + rng.random() for i in range(n)}
    for _ in range(n * rng.randrange(1, 6)):
        i = rng.randrange(n)
        entries.setdefault((i, rng.randrange(i + 1)), rng.random())
    lines = [f"{i + 1} {j + 1} {v:.6f}" for (i, j), v in entries.items()]
    return f"%%MatrixMarket matrix coordinate real general\n{n} {n} {len(lines)}\n" + "\n".join(lines) + "\n"


def job(rng, digest):
    if rng.random() < 0.25:
        problem = {"op": "sptrsv", "dtype": "f64", "triangle": "lower", "diagonal": "non-unit", "rhs": rng.choice([1, 3])}
    else:
        problem = {"op": "spmm", "n": rng.choice([1, 3, 8, 33]), "dtype": "f32", "layout": rng.choice(["row", "col"])}
    return {"matrix": digest, "problem": problem, "search": {"top_k": 10, "trials": 14, "seconds": 4}}


class Lost(Exception):
    """No answer: the connection was refused or broke."""


class Client:
    def __init__(self, port, times=None):
        self.port, self.connection, self.times = port, None, times

    def ask(self, method, path, body=None, kind="application/json", name=None):
        """Status and body. A request without an answer raises `Lost`: whether it was done is unknown."""
        if isinstance(body, dict):
            body = json.dumps(body)
        began = time.monotonic()
        try:
            if self.connection is None:
                self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
            self.connection.request(method, path, body, {"content-type": kind} if body is not None else {})
            answer = self.connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.connection = None
            raise Lost(str(error)) from error
        if self.times is not None:
            self.times[name or method].append((time.monotonic() - began, answer.status))
        return answer.status, text

    def get(self, path, **options):
        status, text = self.ask("GET", path, **options)
        return status, json.loads(text) if text[:1] in (b"{", b"[") else text

    def insist(self, path):
        """A read that is asked again until there is an answer."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self.get(path)
            except Lost:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    def all(self, path):
        cursor, items = None, []
        while True:
            status, page = self.insist(path + (f"{'&' if '?' in path else '?'}cursor={cursor}" if cursor else ""))
            if status != 200:
                return None
            items += page["items"]
            cursor = page.get("next")
            if not cursor:
                return items


class Ledger:
    """What was acknowledged, by all threads."""

    def __init__(self):
        self.lock = threading.Lock()
        self.matrices, self.jobs, self.trainings, self.trials = {}, {}, {}, {}
        self.statuses, self.unanswered = collections.Counter(), 0
        self.problems = []

    def count(self, what, status):
        with self.lock:
            self.statuses[what, status] += 1


def work(client, rng, ledger, stop, pace):
    """One client's day: uploads, jobs, trainings, lookups and looks at what is there, until it is told to stop."""
    while not stop.is_set():
        time.sleep(pace * rng.random())
        try:
            step(client, rng, ledger)
        except Lost:
            with ledger.lock:
                ledger.unanswered += 1
            time.sleep(0.1)
        except Exception as error:  # An answer that cannot be read is a finding, not an end.
            with ledger.lock:
                ledger.problems.append(f"unreadable: {error!r}")


def step(client, rng, ledger):
    chance = rng.random()
    with ledger.lock:
        digest = rng.choice(list(ledger.matrices)) if ledger.matrices else None
        job_id = rng.choice(list(ledger.jobs)) if ledger.jobs else None
        queued = sum(state not in ("succeeded", "failed", "cancelled") for state in ledger.jobs.values())
    if digest is None or chance < 0.15:
        text = matrix(rng)
        status, body = client.ask("POST", "/v1/matrices", text, "text/plain", "upload")
        ledger.count("upload", status)
        if status in (200, 201):
            with ledger.lock:
                ledger.matrices[json.loads(body)["digest"]] = len(text)
    elif chance < 0.30:
        if queued >= 40:
            return
        status, body = client.ask("POST", "/v1/jobs", job(rng, digest), name="job")
        ledger.count("job", status)
        if status in (200, 201, 202):
            with ledger.lock:
                ledger.jobs.setdefault(json.loads(body)["id"], "queued")
    elif chance < 0.302:
        status, body = client.ask("POST", "/v1/models/train", {"op": rng.choice(["spmm", "sptrsv"])}, name="training")
        ledger.count("training", status)
        if status in (200, 201, 202):
            with ledger.lock:
                ledger.trainings.setdefault(json.loads(body)["id"], "queued")
    elif chance < 0.55:
        problem = f"op=spmm&n={rng.choice([1, 3, 8, 33])}&dtype=f32&layout={rng.choice(['row', 'col'])}"
        status, _ = client.get(f"/v1/plans?matrix={digest}&{problem}&device=cpu&predicted=false", name="lookup")
        ledger.count("lookup", status)
    elif job_id and chance < 0.75:
        status, body = client.get(f"/v1/jobs/{job_id}", name="job seen")
        ledger.count("job seen", status)
        if status == 200:
            with ledger.lock:
                ledger.jobs[job_id] = body["state"]
        elif status == 404:
            with ledger.lock:
                ledger.problems.append(f"job {job_id} was acknowledged and is gone")
    elif job_id and chance < 0.90:
        status, body = client.get(f"/v1/jobs/{job_id}/trials?limit=100", name="trials")
        ledger.count("trials", status)
        if status == 200:
            with ledger.lock:
                for trial in body["items"]:
                    ledger.trials[trial["id"]] = (json.dumps(trial["candidate"], sort_keys=True), trial["state"])
    else:
        path = rng.choice(["/", "/jobs", "/matrices", "/devices", "/v1/jobs?limit=20", "/v1/matrices?limit=20", "/healthz", "/metrics"])
        status, _ = client.get(path, name="pages and lists")
        ledger.count("pages and lists", status)


def start_clients(service, ledger, count, stop, pace, seed, times=None):
    threads = []
    for number in range(count):
        client = Client(service.port, times)
        arguments = (client, random.Random(seed * 1000 + number), ledger, stop, pace)
        threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        threads[-1].start()
    return threads


def settle(client, ledger, minutes):
    """Waits until no job waits or runs."""
    until = time.monotonic() + minutes * 60
    while time.monotonic() < until:
        open_jobs = []
        for ends in (ledger.jobs, ledger.trainings):
            for job_id, state in list(ends.items()):
                if state in ("queued", "running"):
                    status, body = client.insist(f"/v1/jobs/{job_id}")
                    ends[job_id] = body["state"] if status == 200 else f"status {status}"
                    if ends[job_id] in ("queued", "running"):
                        open_jobs.append(job_id)
        if not open_jobs:
            return
        time.sleep(1)
    ledger.problems.append(f"{len(open_jobs)} jobs or trainings did not end within {minutes} minutes")


def reckon(service, client, ledger):
    """Compares what is there with what was acknowledged."""
    problems = ledger.problems
    for digest in ledger.matrices:
        status, _ = client.insist(f"/v1/matrices/{digest}")
        if status != 200:
            problems.append(f"matrix {digest}: {status}")
    trials = plans = 0
    ends = collections.Counter()
    for job_id in ledger.jobs:
        status, body = client.insist(f"/v1/jobs/{job_id}")
        if status != 200:
            problems.append(f"job {job_id}: {status}")
            continue
        ends[body["state"]] += 1
        if body["state"] == "failed":
            problems.append(f"job {job_id} failed: {json.dumps(body.get('error'))}")
        if body["state"] == "succeeded":
            status, plan = client.insist(f"/v1/plans/{body['plan']}")
            plans += status == 200
            if status != 200:
                problems.append(f"plan {body['plan']}: {status}")
        seen = collections.Counter()
        stored = client.all(f"/v1/jobs/{job_id}/trials?limit=100") or []
        trials += len(stored)
        for trial in stored:
            what = json.dumps(trial["candidate"], sort_keys=True)
            seen[what, trial["baseline"]] += 1
            known = ledger.trials.pop(trial["id"], None)
            if known and known != (what, trial["state"]):
                problems.append(f"trial {trial['id']} changed from {known} to {(what, trial['state'])}")
        problems += [f"job {job_id}: {count} trials of {what}" for what, count in seen.items() if count > 1]
    problems += [f"trial {trial} was seen and is gone" for trial in ledger.trials]
    jobs = client.all("/v1/jobs?limit=100") or []
    tuned = collections.Counter((j["matrix"], json.dumps(j["problem"], sort_keys=True), j["id"]) for j in jobs if j["kind"] == "tune")
    quarantined = client.all("/v1/quarantine?limit=100")
    for entry in quarantined or []:
        problems.append(f"quarantined: {json.dumps(entry)[:300]}")
    models = client.insist("/v1/models")[1]["items"]
    trained = collections.Counter(client.insist(f"/v1/jobs/{training}")[1].get("state") for training in ledger.trainings)
    return {
        "matrices acknowledged": len(ledger.matrices), "jobs acknowledged": len(ledger.jobs), "jobs there": len(tuned),
        "jobs by end": dict(ends), "plans read": plans, "trials there": trials,
        "trainings acknowledged, by end": dict(trained), "models there": len(models), "quarantined": len(quarantined or []),
    }


def errors_in(folder):
    """Lines of the logs that speak of a lock or an error, a few of each."""
    counted, shown = collections.Counter(), []
    for name in ("server", "worker"):
        for line in (folder / f"{name}.log").read_text(errors="replace").splitlines():
            if "locked" in line or "busy" in line.lower() and "database" in line.lower():
                counted["errors of locks"] += 1
                shown.append(line)
            elif "panicked" in line:
                counted["panics"] += 1
                shown.append(line)
            elif " ERROR " in line:
                counted["errors in the log"] += 1
                shown.append(line)
    return counted, shown[:10]


def tell(facts):
    for name, value in facts.items():
        print(f"{name:<34} {value}")


def kills(service, options):
    ledger, stop, rng = Ledger(), threading.Event(), random.Random(options.seed)
    threads = start_clients(service, ledger, 12, stop, 0.15, options.seed)
    done, began, longest = collections.Counter(), time.monotonic(), 0.0
    probe = Client(service.port)
    while sum(done.values()) < options.kills:
        time.sleep(rng.uniform(0.5, 2 * options.pause - 0.5))
        name = rng.choice(["server", "worker", "evaluator"])
        if service.kill(name):
            done[name] += 1
        if name == "server":
            down = time.monotonic()
            while True:
                try:
                    probe.get("/healthz")
                    break
                except Lost:
                    time.sleep(0.02)
            longest = max(longest, time.monotonic() - down)
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    client = Client(service.port)
    settle(client, ledger, 20)
    facts = reckon(service, client, ledger)
    ends = service.stop()
    fsck = subprocess.run([service.binary, "fsck", "--data", str(service.folder / "data"), "--json"], capture_output=True, text=True)
    counted, shown = errors_in(service.folder)
    tell({
        "SIGKILLs": dict(done), "minutes": round((time.monotonic() - began) / 60, 1),
        "longest time until an answer, s": round(longest, 2), "requests without an answer": ledger.unanswered,
        **facts, "ended after SIGTERM with": ends, "fsck": f"exit {fsck.returncode}", **counted,
    })
    print("fsck said:", fsck.stdout.strip()[:2000], fsck.stderr.strip()[-500:])
    for (what, status), count in sorted(ledger.statuses.items(), key=str):
        print(f"  {what:<20} {status} {count}")
        if status not in (200, 201, 202, 429, 503):
            ledger.problems.append(f"{count} answers {status} to {what}")
    print("\n".join(shown))
    if fsck.returncode or any(end != 0 for end in ends.values()):
        ledger.problems.append("fsck or the end after SIGTERM was not in order")
    return ledger.problems


def clients(service, options):
    ledger, stop = Ledger(), threading.Event()
    times = collections.defaultdict(list)
    threads = start_clients(service, ledger, options.clients, stop, options.pace, options.seed, times)
    began, samples = time.monotonic(), []
    while time.monotonic() - began < options.minutes * 60:
        time.sleep(min(30, options.minutes * 6))
        samples.append((time.monotonic() - began, service.sizes(), len(ledger.matrices), len(ledger.jobs)))
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    elapsed = time.monotonic() - began
    problems = ledger.problems
    print(f"{'':<18} {'answers':>8} {'p50 ms':>9} {'p99 ms':>9} {'max ms':>9}  statuses")
    for name, asked in sorted(times.items()):
        took = sorted(t for t, _ in asked)
        at = lambda q: took[int((len(took) - 1) * q)] * 1e3
        statuses = dict(collections.Counter(status for _, status in asked))
        print(f"{name:<18} {len(asked):>8} {at(0.5):>9.1f} {at(0.99):>9.1f} {at(1):>9.1f}  {statuses}")
        problems += [f"{count} answers {status} to {name}" for status, count in statuses.items()
                     if status not in (200, 201, 202, 429, 503)]
    first, last = samples[len(samples) // 4], samples[-1]
    hours = (last[0] - first[0]) / 3600
    print(f"\n{'growth':<34} {'at the end':>14} {'by the day':>14}, from the last {hours * 60:.0f} minutes")
    for name in sorted(last[1]):
        unit = 1 if "descriptors" in name else 1 << 20
        print(f"{name:<34} {last[1][name] / unit:>14.1f} {(last[1][name] - first[1][name]) / unit / hours * 24:>14.1f}")
    counted, shown = errors_in(service.folder)
    tell({
        "minutes": round(elapsed / 60, 1), "requests a second": round(sum(map(len, times.values())) / elapsed, 1),
        "matrices": len(ledger.matrices), "jobs": len(ledger.jobs), "requests without an answer": ledger.unanswered,
        "ended after SIGTERM with": service.stop(), **counted,
    })
    print("\n".join(shown))
    if counted["errors of locks"] or counted["panics"]:
        problems.append("the log has errors of locks, or panics")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["kills", "clients"])
    parser.add_argument("--binary", default="target/release/sparsetune", type=pathlib.Path)
    parser.add_argument("--kills", default=100, type=int)
    parser.add_argument("--pause", default=5.0, type=float, help="seconds between two kills, on average")
    parser.add_argument("--minutes", default=10.0, type=float)
    parser.add_argument("--clients", default=32, type=int)
    parser.add_argument("--pace", default=0.2, type=float, help="most seconds that a client waits between two requests")
    parser.add_argument("--seed", default=1, type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        processes = {}
        try:
            service = Service(options.binary.resolve(), pathlib.Path(folder), processes)
            problems = {"kills": kills, "clients": clients}[options.mode](service, options)
        finally:
            for process in processes.values():
                process.kill()
    print(f"\n{len(problems)} problems" if problems else "\nnothing lost")
    print("\n".join(problems[:50]))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
