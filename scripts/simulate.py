#!/usr/bin/env python3
"""Runs the service as a cluster of hosts on this machine, breaks it, and says what was lost. Linux and root; standard library only.

    scripts/simulate.py faults --jobs 10000        3 servers, 16 workers, PostgreSQL behind PgBouncer, an S3 store; one fault after another
    scripts/simulate.py rates --workers 1,4,16,64  what the store bears, on PostgreSQL and on SQLite, and what is busy meanwhile

Hosts are network namespaces (simulation_hosts.py, simulation_cluster.py). Workers play recorded outcomes (`devices.use = ["replay:FILE"]`), made at first by a
search on this machine's processor, with a pause for each trial. `faults` exits with 1 if a job was lost, doubled or failed, a trial was
doubled, or the service did not go on. Clocks are shifted by libfaketime (package faketime), where that is installed.
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import re
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from simulation_cluster import FAKETIME, Client, Cluster, Load, Watch
from simulation_hosts import Impossible, processor_seconds, tree


def faults_of(cluster, servers, workers):
    """Each fault: its name, what begins it, what ends it, how long it lasts, and the worker whose jobs it holds up."""
    store, bucket, network, processes = cluster.store, cluster.bucket, cluster.network, cluster.processes
    nothing = lambda: None

    def restart(name):
        processes[name].kill()
        processes[name].start()

    def signal_all(pids, number):
        for pid in pids:
            # A server's process for one connection may have ended meanwhile.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill_evaluator(name):
        signal_all(tree(processes[name].pid)[1:], signal.SIGKILL)

    def crash_database():
        signal_all(tree(store.server.pid), signal.SIGKILL)
        store.server.process.wait()
        time.sleep(1)
        store.server.start()

    def freeze(process, number):
        signal_all(tree(process.pid), number)

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
        # No more jobs from now on; those that are there end.
        load.wanted, until = load.begun, max(until, time.monotonic() + 600)
        for thread in load.threads:
            thread.join(60)
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
    text = re.sub(r"=[\w./-]*[0-9/][\w./-]*", "=#", text.split("}: ", 1)[-1])
    return re.sub(r"[0-9]+", "#", text)[:160]


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
    # Not so long that the queue is empty before the measurement.
    opened = time.monotonic() + 12
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
    parser.add_argument("--minutes", default=60.0, type=float, help="minutes after the last fault in which jobs are still submitted")
    parser.add_argument("--lease-ms", default=15000, type=int)
    parser.add_argument("--latency-ms", default=20, type=int, help="pause of the recorded device for each trial")
    parser.add_argument("--workers", default="1,4,16,64", help="numbers of workers of `rates`")
    parser.add_argument("--stores", default="postgres,sqlite", help="stores of `rates`")
    parser.add_argument("--seconds", default=20.0, type=float, help="how long `rates` measures")
    parser.add_argument("--most", default=4000, type=int, help="most jobs that `rates` queues")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for logs and data, which is kept")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="where the results are written, as JSON")
    options = parser.parse_args()
    if options.at_once < 6:
        parser.error("--at-once: six workers at least, since the faults are of different ones")
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
