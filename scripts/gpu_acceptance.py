#!/usr/bin/env python3
"""Drives a real server the way a client would: upload with curl, tune, look plans up by hash; prints the tables.

    scripts/gpu_acceptance.py --binary target/release/sparsetune --out result.json \
        --n 32 128 --generate 'poisson3d:nx=100,ny=100,nz=100' -- matrices/*.mtx.gz

Python's standard library and curl are all it needs. Every figure comes from the server's own answers, except the wall
time of a job, which is taken here from submission to the end.
"""

import argparse
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request


def call(method, url, body=None, headers=None):
    """One JSON exchange; HTTP errors come back as data."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers=headers or {})
    if body is not None:
        request.add_header("content-type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.loads(response.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"null")


class Server:
    """`sparsetune serve` on a free port of loopback."""

    def __init__(self, binary, data, extra):
        self.binary, self.data, self.extra = binary, data, extra
        self.start()

    def start(self):
        log = open(os.path.join(self.data, "server.log"), "ab")
        command = [self.binary, "serve", "--listen", "127.0.0.1:8099", "--data", self.data, *self.extra]
        self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.url = "http://127.0.0.1:8099"
        for _ in range(600):
            try:
                if call("GET", self.url + "/readyz")[0] == 200:
                    return
            except (urllib.error.URLError, OSError):
                pass
            if self.process.poll() is not None:
                sys.exit(f"the server ended with {self.process.returncode}; see {log.name}")
            time.sleep(0.1)
        sys.exit("the server did not become ready within a minute")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=30)


def upload(server, path):
    """POSTs a file with curl; (status, answer, seconds)."""
    name = re.sub(r"\.(mtx|gz)", "", os.path.basename(path))
    began = time.monotonic()
    command = ["curl", "-sS", "-X", "POST", "--data-binary", f"@{path}", "-H", "content-type: application/octet-stream"]
    output = subprocess.run(
        [*command, "-w", "\n%{http_code}", f"{server.url}/v1/matrices?name={name}"],
        capture_output=True, text=True, check=True).stdout
    body, status = output.rsplit("\n", 1)
    return int(status), json.loads(body), time.monotonic() - began


def tune(server, digest, problem, search, device):
    """Submits a job and waits for its end; (job, seconds)."""
    began = time.monotonic()
    status, job = call("POST", server.url + "/v1/jobs",
                       {"matrix": digest, "problem": problem, "search": search, "device": device})
    if status >= 300:
        return {"state": "refused", "error": job.get("detail")}, 0.0
    while job["state"] in ("queued", "running"):
        time.sleep(0.02)
        _, job = call("GET", f"{server.url}/v1/jobs/{job['id']}")
    return job, time.monotonic() - began


def lookup(server, digest, problem, device):
    query = "&".join(f"{key}={value}" for key, value in problem.items())
    return call("GET", f"{server.url}/v1/plans?matrix={digest}&device={device}&{query}")[1]


def describe(candidate):
    params = ",".join(f"{key}={value}" for key, value in sorted(candidate["params"].items()))
    return f"{candidate['family']}{{{params}}}"


def geomean(values):
    values = [value for value in values if value]
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


def run_problem(server, matrices, problem, search, device, results):
    print(f"\n== {problem}  {search} ==")
    header = f"{'matrix':40} {'rows':>9} {'nnz':>10} {'best us':>10} {'vendor us':>10} {'speedup':>7} {'limit':>6} {'pred':>6} {'job s':>6}  winner"
    print(header)
    speedups = []
    for name, matrix in matrices:
        job, seconds = tune(server, matrix["digest"], problem, search, device)
        if job["state"] != "succeeded":
            print(f"{name:40} {job['state']}: {job.get('error')}")
            results.append({"matrix": name, "problem": problem, "job": job})
            continue
        found = lookup(server, matrix["digest"], problem, device)
        plan = found["plan"]
        if found["match"]["grade"] != "exact" or plan["id"] != job["plan"]:
            print(f"{name:40} LOOKUP {found['match']}")
        baseline = (plan.get("baseline") or {}).get("median_us", float("nan"))
        predicted = (plan.get("predicted") or {}).get("median_us", float("nan"))
        speedups.append(plan.get("speedup"))
        print(f"{name:40} {matrix['rows']:9} {matrix['nnz']:10} {plan['measured']['median_us']:10.2f} {baseline:10.2f}"
              f" {plan.get('speedup') or float('nan'):7.3f} {plan['limit']['fraction']:6.3f}"
              f" {predicted / plan['measured']['median_us']:6.2f} {seconds:6.2f}  {describe(plan['candidate'])}"
              + (" (tie)" if plan["tie"] else ""))
        results.append({"matrix": name, "facts": matrix, "problem": problem, "seconds": seconds, "plan": plan})
    if speedups:
        print(f"geomean {geomean(speedups):.3f} over {len(speedups)}; least {min(s for s in speedups if s):.3f}")


def trials(server, job):
    """Every trial of a job, page by page."""
    after, all_trials = "", []
    while True:
        _, page = call("GET", f"{server.url}/v1/jobs/{job}/trials?limit=500{after}")
        all_trials += page["items"]
        if not page.get("next"):
            return all_trials
        after = f"&cursor={page['next']}"


def survive_a_kill(server, digest, n, layout, device, after):
    """SIGKILLs the server in the middle of an exhaustive job and starts it again; what was recorded must stand."""
    problem = {"op": "spmm", "n": n, "dtype": "f32", "layout": layout}
    search = {"strategy": "exhaustive", "seconds": 120, "trials": 5000, "seed": 77}
    _, job = call("POST", server.url + "/v1/jobs",
                  {"matrix": digest, "problem": problem, "search": search, "device": device})
    tried = []
    while len(tried) < after:
        time.sleep(0.05)
        tried = [t for t in trials(server, job["id"]) if t["state"] != "pruned"]
    server.kill()
    began = time.monotonic()
    server.start()
    before = {t["id"]: t for t in tried}
    resumed = None
    while True:
        _, now = call("GET", f"{server.url}/v1/jobs/{job['id']}")
        if resumed is None and now["progress"]["done"] > len(tried) + 1:
            resumed = time.monotonic() - began
        if now["state"] not in ("queued", "running"):
            break
        time.sleep(0.05)
    rows = trials(server, job["id"])
    kept = {t["id"]: t for t in rows}
    names = [describe(t["candidate"]) for t in rows]
    print(f"\nSIGKILL after {len(tried)} trials: the job went on {resumed or 0:.1f} s after the restart and {now['state']};"
          f" recorded before and unchanged: {sum(kept.get(i) == t for i, t in before.items())} of {len(before)};"
          f" candidates tried twice: {len(names) - len(set(names))}; trials in all: {len(rows)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--out")
    parser.add_argument("--n", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--layout", default="row")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--strategy", default="ranked")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--generate", nargs="*", default=[])
    parser.add_argument("--repeat", action="store_true", help="tune each problem again, with a warm cubin cache")
    parser.add_argument("--keep-trials", action="store_true", help="write every trial to the result")
    parser.add_argument("--kill-after", type=int, metavar="TRIALS", help="SIGKILL the server in a job and go on")
    parser.add_argument("--serve", nargs="*", default=[], help="further flags for the server")
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()

    data = tempfile.mkdtemp(prefix="sparsetune-")
    generated = []
    for i, spec in enumerate(args.generate):
        path = os.path.join(data, f"{spec.split(':')[0]}_{i}.mtx")
        subprocess.run([args.binary, "generate", spec, "-o", path], check=True)
        generated.append(path)
    server = Server(args.binary, data, [f"--{flag}" for flag in args.serve])
    try:
        print(json.dumps(call("GET", server.url + "/v1/devices")[1])[:1500])
        matrices, results = [], []
        for path in [*args.files, *generated]:
            status, answer, seconds = upload(server, path)
            name = re.sub(r"\.(mtx|gz)", "", os.path.basename(path))
            if status in (200, 201):
                matrices.append((name, answer))
                print(f"{status} {name}: {answer['rows']} x {answer['cols']}, {answer['nnz']} entries, {seconds:.2f} s")
            else:
                print(f"{status} {name}: {answer.get('title')}: {answer.get('detail')}")
            results.append({"upload": name, "status": status, "answer": answer, "seconds": seconds})
        print(f"{len(matrices)} of {len(args.files) + len(generated)} accepted")
        search = {"strategy": args.strategy, "seconds": args.seconds, "trials": args.trials}
        for n in args.n:
            problem = {"op": "spmm", "n": n, "dtype": "f32", "layout": args.layout}
            run_problem(server, matrices, problem, search, args.device, results)
            if args.repeat:
                run_problem(server, matrices, problem, search, args.device, results)
        failures = {}
        for result in results:
            for state, count in result.get("plan", {}).get("trials", {}).get("failed", {}).items():
                failures[state] = failures.get(state, 0) + count
        print(f"\ntrials that did not come to a time, by state: {failures}")
        if args.kill_after:
            survive_a_kill(server, matrices[-1][1]["digest"], args.n[0], args.layout, args.device, args.kill_after)
        if args.keep_trials:
            for result in results:
                if "plan" in result:
                    result["trials"] = trials(server, result["plan"]["provenance"]["job"])
        if args.out:
            with open(args.out, "w") as out:
                json.dump(results, out)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
