#!/usr/bin/env python3
"""Runs the service as a cluster of hosts on this machine, breaks it, and says what was lost. Linux and root; standard library only.

    scripts/simulate.py faults --jobs 10000        3 servers, 16 workers, PostgreSQL behind PgBouncer, an S3 store; one fault after another
    scripts/simulate.py rates --workers 1,4,16,64  what the store bears, on PostgreSQL and on SQLite, and what is busy meanwhile

Hosts are network namespaces (simulation_hosts.py). Workers play recorded outcomes (`devices.use = ["replay:FILE"]`), made at first by a
search on this machine's processor, with a pause for each trial. `faults` exits with 1 if a job was lost, doubled or failed, a trial was
doubled, or the service did not go on. Clocks are shifted by libfaketime (package faketime), where that is installed.
"""

import argparse
import collections
import http.client
import json
import os
import pathlib
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid

from simulation_hosts import Bucket, Impossible, Network, Postgres, Process, processor_seconds, tree

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
        for process in self.processes.values():
            for pid in tree(process.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        if self.bucket:
            self.bucket.end()
        if self.store:
            for pid in self.store.pids():
                os.kill(pid, signal.SIGKILL)
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


def faults_of(cluster, servers, workers):
    """Each fault: its name, what begins it, what ends it, how long it lasts, and the worker whose jobs it holds up."""
    store, bucket, network, processes = cluster.store, cluster.bucket, cluster.network, cluster.processes
    nothing = lambda: None

    def restart(name):
        processes[name].kill()
        processes[name].start()

    def kill_evaluator(name):
        for pid in tree(processes[name].pid)[1:]:
            os.kill(pid, signal.SIGKILL)

    def crash_database():
        for pid in tree(store.server.pid):
            os.kill(pid, signal.SIGKILL)
        store.server.process.wait()
        time.sleep(1)
        store.server.start()

    def freeze(process, number):
        for pid in tree(process.pid):
            os.kill(pid, number)

    def shut_out(status, share):
        return lambda: setattr(bucket.refused[status], "value", share)

    def drain(name):
        processes[name].end()
        processes[name].start()

    w = iter(workers)
    one, two, three, four, five, six = (next(w) for _ in range(6))
    return [
        ("a worker is killed and stays away", lambda: processes[one].kill(), lambda: processes[one].start(), 25, one),
        ("a worker is cut off", lambda: network.cut(two, True), lambda: network.cut(two, False), 30, two),
        ("an evaluator is killed", lambda: kill_evaluator(three), nothing, 0, three),
        ("a worker is drained (SIGTERM) and started", lambda: drain(four), nothing, 0, four),
        ("a worker is frozen for 20 s", lambda: freeze(processes[five], signal.SIGSTOP), lambda: freeze(processes[five], signal.SIGCONT), 20, five),
        ("a server is killed and started", lambda: restart(servers[0]), nothing, 0, None),
        ("a server is cut off", lambda: network.cut(servers[1], True), lambda: network.cut(servers[1], False), 20, None),
        ("PostgreSQL is restarted (SIGINT)", lambda: store.stop(signal.SIGINT), nothing, 0, None),
        ("PostgreSQL crashes (SIGKILL of all its processes)", crash_database, nothing, 0, None),
        ("PostgreSQL is frozen for 20 s", lambda: freeze(store.server, signal.SIGSTOP), lambda: freeze(store.server, signal.SIGCONT), 20, None),
        ("the database is cut off for 20 s", lambda: network.cut("db", True), lambda: network.cut("db", False), 20, None),
        ("PgBouncer is killed and started", lambda: (store.pooler.kill(), store.pooler.start()), nothing, 0, None),
        ("the S3 store answers 503 to everything for 20 s", shut_out(503, 1000), shut_out(503, 0), 20, None),
        ("the S3 store answers 409 to half of all PUT for 20 s", shut_out(409, 500), shut_out(409, 0), 20, None),
        ("four workers are killed at once", lambda: [processes[name].kill() for name in (one, two, three, six)],
         lambda: [processes[name].start() for name in (one, two, three, six)], 5, six),
        ("all servers are killed and started", lambda: [restart(name) for name in servers], nothing, 0, None),
    ]


def held_by(store, worker):
    rows = store.ask(f"SELECT id FROM jobs WHERE state = 'running' AND owner LIKE '{worker}/%'", 5)
    return [row[0] for row in rows]


def wait_for_end(store, ids, begin, most=200):
    """Seconds until all of these jobs have ended."""
    names = ",".join(f"'{one}'" for one in ids)
    while time.monotonic() < begin + most:
        try:
            if store.ask(f"SELECT count(*) FROM jobs WHERE id IN ({names}) AND state IN ('queued', 'running')", 5)[0][0] == "0":
                return round(time.monotonic() - begin, 1)
        except (OSError, subprocess.TimeoutExpired):
            pass
        time.sleep(0.3)
    return None


def faults(options, folder):
    cluster = Cluster(options, folder)
    try:
        cluster.on_postgres(clients=40)
        skews = [300, -240] if FAKETIME.exists() else [0, 0]
        servers = {f"server{i}": cluster.server(f"server{i}", skew=skews[0] if i == 2 else 0) for i in range(3)}
        workers = [f"worker{i}" for i in range(options.at_once)]
        for i, name in enumerate(workers):
            cluster.worker(name, skew=dict(zip((options.at_once - 1, options.at_once - 2), skews)).get(i, 0))
        unready = []
        for name, address in servers.items():
            try:
                cluster.ready(address)
            except Impossible:
                unready.append(name)
        if len(unready) == len(servers):
            raise Impossible(f"no server became ready: see {folder}")
        watch = Watch(cluster.store)
        began = time.monotonic()
        load = Load(list(servers.values()), options.jobs, 40 * options.at_once, watch.ended)
        # The first jobs find the way for all others: no fault before any has ended.
        watch.next_after(began)
        told, rows = [], []
        for name, begin, end, lasts, worker in faults_of(cluster, list(servers), workers):
            if options.only and not any(word in name for word in options.only.split(",")):
                continue
            time.sleep(options.pause)
            before = dict(load.answers)
            held = held_by(cluster.store, worker) if worker else []
            at, found = time.monotonic(), []
            waiting = threading.Thread(target=lambda: found.append(wait_for_end(cluster.store, held, at)))
            begin()
            if held:
                waiting.start()
            time.sleep(lasts)
            end()
            over = time.monotonic()
            after = watch.next_after(over)
            if held:
                waiting.join()
            ended = found[0] if held else None
            settled = time.monotonic()
            answers = {str(k): v - before.get(k, 0) for k, v in dict(load.answers).items() if v > before.get(k, 0)}
            row = {
                "fault": name, "lasted_s": round(over - at, 1), "next_job_ended_s": round(after, 1) if after is not None else None,
                "longest_pause_s": round(watch.longest_pause(at - 2, settled), 1), "jobs_held": len(held), "held_ended_s": ended, "answers": answers,
            }
            rows.append(row)
            print(json.dumps(row), flush=True)
            if after is None or (held and ended is None):
                told.append(f"{name}: the service did not go on")
            if all(not thread.is_alive() for thread in load.threads) and watch.ended() >= options.jobs:
                told.append(f"{name}: all jobs had ended, so what came after it was not tried under load")
        until = time.monotonic() + options.minutes * 60
        while any(thread.is_alive() for thread in load.threads) and time.monotonic() < until:
            time.sleep(0.5)
        while time.monotonic() < until and watch.ended() < len(load.acknowledged):
            time.sleep(0.5)
        time.sleep(1)
        elapsed = time.monotonic() - began
        load.stopped = watch.stopped = True
        facts, problems = reckon(cluster, load)
        ends = cluster.end()
        fsck = subprocess.run([cluster.binary, "fsck"], env={**os.environ, **cluster.settings("check", False)}, capture_output=True, text=True)
        logs = counted_logs(folder)
        if fsck.returncode:
            problems.append(f"fsck: {fsck.stdout[-400:]} {fsck.stderr[-400:]}")
        problems += told + load.problems[:20] + [f"{name} was not ready at first" for name in unready]
        return {
            "jobs": options.jobs, "servers": len(servers), "workers": len(workers), "lease_ms": options.lease_ms, "latency_ms": options.latency_ms,
            "clocks_shifted_s": skews, "minutes": round(elapsed / 60, 1), "faults": rows, "answers": {str(k): v for k, v in load.answers.items()},
            "refused_by_the_store_of_objects": cluster.bucket.told.value, **facts, "exit_statuses": ends, "logs": logs, "problems": problems,
        }
    finally:
        cluster.clear()


def reckon(cluster, load):
    """What the database has, against what was acknowledged."""
    ask, problems = cluster.store.ask, []
    states = dict(ask("SELECT state, count(*) FROM jobs GROUP BY 1"))
    there = {row[0]: row[1:] for row in ask("SELECT id, state, attempts, plan FROM jobs", 60)}
    lost = [one for one in load.acknowledged if one not in there]
    if lost:
        problems.append(f"{len(lost)} acknowledged jobs are not there, such as {lost[:3]}")
    if len(there) != len(load.acknowledged):
        problems.append(f"{len(there)} jobs are there, {len(load.acknowledged)} were acknowledged")
    for one, (state, _, plan) in there.items():
        if state != "succeeded" or not plan:
            error = ask(f"SELECT error, stage, done, attempts FROM jobs WHERE id = '{one}'")
            problems.append(f"job {one}: {state} {error}")
    same = ask("SELECT count(*) FROM (SELECT request FROM jobs GROUP BY request HAVING count(*) > 1) AS d")[0][0]
    doubled = ask("SELECT count(*) FROM (SELECT job, candidate_id FROM trials GROUP BY 1, 2 HAVING count(*) > 1) AS d", 60)[0][0]
    gaps = ask("SELECT count(*) FROM (SELECT job FROM events GROUP BY job HAVING max(seq) <> count(*) OR min(seq) <> 1) AS d", 60)[0][0]
    uneven = ask(
        "SELECT min(n), max(n) FROM (SELECT count(*) AS n FROM trials GROUP BY job) AS d", 60)[0]
    without = ask("SELECT count(*) FROM jobs j LEFT JOIN plans p ON p.id = j.plan WHERE j.state = 'succeeded' AND p.id IS NULL", 60)[0][0]
    for count, what in ((same, "requests have two jobs"), (doubled, "candidates have two trials in a job"), (gaps, "jobs have gaps in their events"),
                        (without, "jobs have a plan that is not there")):
        if count != "0":
            problems.append(f"{count} {what}")
    sizes = {
        name: {"rows": int(rows), "bytes": int(heap), "index_bytes": int(index)}
        for name, rows, heap, index in ask(
            "SELECT relname, (xpath('/row/c/text()', query_to_xml('SELECT count(*) AS c FROM ' || relname, false, true, '')))[1]::text,"
            " pg_table_size(oid), pg_indexes_size(oid) FROM pg_class WHERE relkind = 'r' AND relname IN ('jobs', 'trials', 'events', 'plans',"
            " 'matrices', 'holdings', 'devices')", 60)
    }
    attempts = collections.Counter(int(row[1]) for row in there.values())
    return {
        "acknowledged": len(load.acknowledged), "states": states, "trials": sizes["trials"]["rows"], "trials_of_a_job": uneven,
        "attempts": dict(sorted(attempts.items())), "doubled_trials": int(doubled), "jobs_with_gaps": int(gaps), "tables": sizes,
    }, problems


def counted_logs(folder):
    """How often each kind of warning or error is in the logs of servers and workers, without what varies."""
    counted = collections.Counter()
    for path in folder.glob("*[0-9].log"):
        for line in path.read_text(errors="replace").splitlines():
            if "panicked" in line or " ERROR " in line or " WARN " in line:
                text = line.split(" WARN " if " WARN " in line else " ERROR ", 1)[-1]
                counted[("ERROR " if " ERROR " in line else "panic " if "panicked" in line else "WARN ") + message_of(text)] += 1
    return dict(counted.most_common(40))


def message_of(text):
    """A line without identifiers and numbers."""
    text = text.split("}: ", 1)[-1]
    return "".join("#" if character.isdigit() else character for character in text)[:160]


def rate(cluster, options, count, file):
    """One measurement with so many workers."""
    answers = collections.Counter()
    address = cluster.server("server0") if not file else local_server(cluster)
    workers = [f"worker{i}" for i in range(count)]
    cluster.worker(workers[0])
    cluster.ready(address)
    ask = cluster.store.ask if cluster.store else file_asker(cluster)
    wanted = min(options.most, int(count * options.seconds * 4 + 60))
    began = time.monotonic()
    load = Load([address], wanted, wanted, lambda: 0, threads=8)
    for thread in load.threads:
        thread.join()
    submitting = time.monotonic() - began
    for name in workers[1:]:
        cluster.worker(name)
    opened = time.monotonic() + 60
    while int(ask("SELECT count(DISTINCT owner) FROM jobs WHERE state = 'running'")[0][0]) < min(count, 64) * 0.9 and time.monotonic() < opened:
        time.sleep(0.3)
    measured = measure(cluster, options, ask, workers, Client([address], answers), load)
    return {"workers": count, "submitted_per_s": round(wanted / submitting, 1), **measured}


def local_server(cluster):
    return cluster.server("server0")


def file_asker(cluster):
    path = cluster.folder / "data/sparsetune.db"

    def ask(query, _=0):
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=20)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    return ask


def measure(cluster, options, ask, workers, client, load):
    """Jobs, trials and lookups in a while, and the processor time of each part."""
    def state():
        used = {
            "workers": [cluster.processes[name].pid for name in workers], "evaluators": [pid for name in workers for pid in tree(cluster.processes[name].pid)[1:]],
            "server": tree(cluster.processes["server0"].pid), "database": cluster.store.pids() if cluster.store else [],
        }
        counts = [int(ask(query)[0][0]) for query in (
            "SELECT count(*) FROM jobs WHERE state NOT IN ('queued', 'running')", "SELECT count(*) FROM trials", "SELECT count(*) FROM jobs WHERE state = 'queued'")]
        extra = [int(ask(query)[0][0]) for query in (
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'sparsetune'",
            "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint")] if cluster.store else [0, 0]
        load_of_all = sum(map(int, pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:4])) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), counts, {name: processor_seconds(pids) for name, pids in used.items()}, extra, load_of_all

    first = state()
    time.sleep(options.seconds)
    second = state()
    took = second[0] - first[0]
    jobs, trials = (second[1][i] - first[1][i] for i in range(2))
    matrix_of = json.loads(client.ask("GET", "/v1/matrices?limit=1")[1])["items"][0]["digest"]
    times, until = [], time.monotonic() + 5
    while time.monotonic() < until:
        asked = time.monotonic()
        client.ask("GET", f"/v1/plans?matrix={matrix_of}&op=spmm&n=8&device={cluster.device}&predicted=false")
        times.append(time.monotonic() - asked)
    used = {name: round((second[2][name] - first[2][name]) / took, 2) for name in second[2]}
    return {
        "jobs_per_s": round(jobs / took, 2), "trials_per_s": round(trials / took, 1), "cores": used,
        "cores_of_all": round((second[4] - first[4]) / took, 2), "left_queued": second[1][2],
        "transactions_per_job": round((second[3][0] - first[3][0]) / jobs, 1) if jobs and cluster.store else None,
        "log_bytes_per_job": round((second[3][1] - first[3][1]) / jobs) if jobs and cluster.store else None,
        "lookups_by_one_client_per_s": round(len(times) / 5), "lookup_p50_ms": round(statistics.median(times) * 1e3, 2),
        "lookup_p99_ms": round(sorted(times)[int(len(times) * 0.99)] * 1e3, 2),
    }


def rates(options, folder):
    found = {"latency_ms": options.latency_ms, "seconds": options.seconds, "processors": os.cpu_count()}
    for place in options.stores.split(","):
        found[place] = []
        for count in map(int, options.workers.split(",")):
            inner = folder / f"{place}{count}"
            inner.mkdir()
            inner.chmod(0o755)
            cluster = Cluster(options, inner)
            try:
                if place == "postgres":
                    cluster.on_postgres(clients=120)
                else:
                    cluster.on_file()
                found[place].append(rate(cluster, options, count, place != "postgres"))
                print(place, json.dumps(found[place][-1]), flush=True)
            finally:
                cluster.clear()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["faults", "rates"])
    parser.add_argument("--binary", default="target/release/sparsetune", type=pathlib.Path)
    parser.add_argument("--s3", default="target/tools/bin/s3s-fs", type=pathlib.Path, help="the S3 server, which scripts/test installs")
    parser.add_argument("--jobs", default=10000, type=int)
    parser.add_argument("--at-once", default=16, type=int, help="workers of `faults`")
    parser.add_argument("--only", help="parts of the names of the faults that are tried")
    parser.add_argument("--pause", default=15.0, type=float, help="seconds between two faults")
    parser.add_argument("--minutes", default=60.0, type=float, help="most minutes until all jobs have ended, once no fault is left")
    parser.add_argument("--lease-ms", default=15000, type=int)
    parser.add_argument("--latency-ms", default=20, type=int, help="pause of the recorded device for each trial")
    parser.add_argument("--workers", default="1,4,16,64", help="numbers of workers of `rates`")
    parser.add_argument("--stores", default="postgres,sqlite", help="stores of `rates`")
    parser.add_argument("--seconds", default=20.0, type=float, help="how long `rates` measures")
    parser.add_argument("--most", default=4000, type=int, help="most jobs that `rates` queues")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for logs and data, which is kept")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="where the results are written, as JSON")
    options = parser.parse_args()
    # What was started is ended in any case.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or pathlib.Path(temporary)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
        try:
            found = {"faults": faults, "rates": rates}[options.mode](options, folder)
        except Impossible as error:
            sys.exit(f"simulate.py: {error}")
    if options.output:
        options.output.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    print(json.dumps({key: value for key, value in found.items() if key != "faults"}, indent=1))
    problems = found.get("problems", [])
    print(f"{len(problems)} problems" if problems else "nothing lost")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
