#!/usr/bin/env python3
"""Tunes one suite on one GPU of this host, then on two, four and so on, and says how much sooner it ends and whether anybody was disturbed.

    scripts/several_gpus.py --binary target/release/sparsetune --out gpus.json

Each count of GPUs gets a server of its own on an empty folder, which works on as many devices; the suite is all products of all widths with
all matrices, submitted at once without naming a device, so that the queue of the class shares them out. `speed-up` is over the
second run on one GPU, in the time from the first submission to the last end. Disturbance compares each problem's times with those alone on one GPU: of the baseline's routine,
which is the same program whatever the search chose, and of the winner where both searches chose the same. Standard library only.
"""

import argparse
import collections
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

from gpu_acceptance import Server, call, describe, geomean, upload

SPECS = [
    "poisson2d:nx=600,ny=600,seed=1",
    "poisson3d:nx=96,ny=96,nz=96,seed=1",
    "banded:n=4e5,half=8,seed=1",
    "rmat:scale=17,edge_factor=16,seed=1",
    "road:nx=700,ny=700,seed=1",
    "mesh:nx=700,ny=700,seed=1",
    "circuit:n=3e5,hubs=3,seed=1",
    "pruned:rows=4096,cols=4096,sparsity=0.9,seed=1",
    "uniform:rows=2e4,cols=2e5,nnz=1e6,seed=1",
    "elasticity:nx=30,ny=30,nz=30,seed=1",
]


def measure(binary, gpus, paths, widths, search):
    """One suite on the first `gpus` devices: its seconds, and what each problem came to."""
    os.environ["SPARSETUNE_DEVICES__USE"] = json.dumps([f"cuda:{i}" for i in range(gpus)])
    with tempfile.TemporaryDirectory(prefix="sparsetune-gpus-") as data:
        server = Server(binary, data, [])
        try:
            return suite(server, gpus, paths, widths, search)
        finally:
            server.stop()


def suite(server, gpus, paths, widths, search):
    """All products of the suite, submitted at once: the seconds until the last ended, and what each came to."""
    matrices = []
    for path in paths:
        status, answer, _ = upload(server, path)
        if status not in (200, 201):
            raise SystemExit(f"{path}: {status} {answer}")
        matrices.append((pathlib.Path(path).stem, answer["digest"]))
    began, jobs = time.monotonic(), {}
    for name, digest in matrices:
        for n in widths:
            problem = {"op": "spmm", "n": n, "dtype": "f32", "layout": "row"}
            status, job = call("POST", server.url + "/v1/jobs", {"matrix": digest, "problem": problem, "search": search})
            if status >= 300:
                raise SystemExit(f"{name}, N = {n}: {status} {job}")
            jobs[f"{name} N={n}"] = job["id"]
    results, waiting = {}, dict(jobs)
    while waiting:
        for key, job in list(waiting.items()):
            status, answer = call("GET", f"{server.url}/v1/jobs/{job}")
            # A refusal for the moment (503) is no state of the job.
            if status >= 300 or answer["state"] in ("queued", "running"):
                continue
            del waiting[key]
            if answer["state"] != "succeeded":
                results[key] = {"error": answer.get("error") or answer["state"]}
                continue
            plan = call("GET", f"{server.url}/v1/plans/{answer['plan']}")[1]
            baseline = plan.get("baseline") or {}
            results[key] = {
                "device": answer["device"],
                "us": plan["measured"]["median_us"],
                "winner": describe(plan["candidate"]),
                "vendor_us": baseline.get("median_us"),
                "vendor": baseline.get("algorithm"),
                "ended_s": time.monotonic() - began,
            }
        time.sleep(0.05)
    return {"gpus": gpus, "seconds": time.monotonic() - began, "jobs": len(jobs), "results": results}


def disturbance(alone, together):
    """Ratios of times together to those alone, of the baseline's routine and of winners that are the same."""
    ratios = {"vendor": [], "winner": []}
    for key, one in alone["results"].items():
        other = together["results"].get(key, {})
        if "us" not in one or "us" not in other:
            continue
        if one["vendor_us"] and one["vendor"] == other["vendor"]:
            ratios["vendor"].append((other["vendor_us"] / one["vendor_us"], key))
        if one["winner"] == other["winner"]:
            ratios["winner"].append((other["us"] / one["us"], key))
    return {
        what: {
            "problems": len(found),
            "geomean": geomean([ratio for ratio, _ in found]),
            "median": statistics.median(ratio for ratio, _ in found),
            "least": min(found), "most": max(found),
            "within_3_percent": sum(abs(ratio - 1) <= 0.03 for ratio, _ in found),
        }
        for what, found in ratios.items() if found
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--gpus", type=int, nargs="+", help="counts of GPUs, the first alone (1, 2, 4, 8 as far as there are)")
    parser.add_argument("--n", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--matrices", type=int, default=len(SPECS), help="only the first so many matrices of the suite")
    parser.add_argument("--out")
    args = parser.parse_args()
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines()
    counts = args.gpus or [n for n in (1, 2, 4, 8) if n <= len(listed)]

    search = {"seed": 1}
    runs = []
    with tempfile.TemporaryDirectory(prefix="sparsetune-suite-") as folder:
        paths = []
        for spec in SPECS[: args.matrices]:
            path = pathlib.Path(folder) / f"{spec.split(':')[0]}.mtx"
            subprocess.run([args.binary, "generate", spec, "-o", path], check=True)
            paths.append(path)
        # The first count is run twice. The first run finds no compiled kernel and cold files, so speed-ups are over the second; how far
        # the two differ in what they measured is what a neighbour is judged by.
        for count in [counts[0], *counts]:
            runs.append(measure(args.binary, count, paths, args.n, search))
            if args.out:
                pathlib.Path(args.out).write_text(json.dumps({"devices": listed, "runs": runs}, indent=1) + "\n")
    report = {"devices": listed, "runs": runs, "compared": []}
    print(f"{'GPUs':>5} {'jobs':>5} {'seconds':>8} {'speed-up':>8}  times beside those of the first run (median; within 3 %)")
    for run in runs:
        compared = disturbance(runs[0], run) if run is not runs[0] else {}
        report["compared"].append({"gpus": run["gpus"], **compared})
        said = "; ".join(
            f"{what} {c['median']:.3f} ({c['within_3_percent']} of {c['problems']}, {c['least'][0]:.2f} to {c['most'][0]:.2f})"
            for what, c in compared.items())
        errors = [key for key, result in run["results"].items() if "error" in result]
        print(f"{run['gpus']:5} {run['jobs']:5} {run['seconds']:8.1f} {runs[1]['seconds'] / run['seconds']:8.2f}  {said}"
              + (f"  failed: {', '.join(errors)}" if errors else ""))
        share = collections.Counter(str(result.get("device")) for result in run["results"].values())
        print(f"{'':5} jobs by device: {dict(share)}")
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
