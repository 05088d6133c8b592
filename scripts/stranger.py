#!/usr/bin/env python3
"""Times what somebody does who has never seen the project: from clone to first plan, from `pip install` to `f(B)`, from the submit page to a
running plan. What is built or fetched is told apart from what the program does.

    scripts/stranger.py                                         everything anew: clones, and builds the clone and its wheel (minutes)
    scripts/stranger.py --program target/release/sparsetune     the build of the clone is left out, and said to be
    scripts/stranger.py --wheel FILE.whl --paths pip            one path alone, with a wheel that is there

A checkout, a Rust toolchain and Python are needed. Where Playwright and Chromium are (target/venv/bin/python has it after
scripts/test) the page is driven as a person would; otherwise its requests are sent by HTTP, and the table says so. The times are of a browser
and a script: nobody reads, and nobody types.
"""

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MATRIX = ROOT / "data/delaunay_n15.mtx.gz"
PATIENCE_S = 600
# Of the README, with the lines that it presumes; the plan is asked for at the end, and waited for as long as it takes.
PYTHON = """
import json, time
began = time.perf_counter()
import numpy, scipy.sparse
A = scipy.sparse.random(500, 400, 0.02, "csr", dtype="float32")
B = numpy.ones((400, 128), "float32")
imported = time.perf_counter()
import sparsetune
f = sparsetune.spmm(A, n=128)
C = f(B)
first = time.perf_counter()
assert abs(C - A @ B).max() < 1e-3
g = sparsetune.spmm(A, n=128, wait=True)
C = g(B)
tuned = time.perf_counter()
assert abs(C - A @ B).max() < 1e-3
print(json.dumps({"libraries": imported - began, "first": first - imported, "tuned": tuned - imported}))
"""


class Watch:
    """Steps with their seconds, in order; a step may be one that was left out, with the reason."""

    def __init__(self, path, what):
        self.path, self.what, self.steps = path, what, []

    def run(self, step, counts, action):
        began = time.monotonic()
        value = action()
        self.add(step, counts, time.monotonic() - began)
        return value

    def add(self, step, counts, seconds):
        self.steps.append({"step": step, "seconds": round(seconds, 2), "counts": counts})

    def leave_out(self, step, why):
        self.steps.append({"step": step, "seconds": None, "counts": False, "why": why})

    @property
    def total(self):
        """Of the steps that count: neither builds nor downloads."""
        return round(sum(step["seconds"] for step in self.steps if step["counts"]), 2)

    def told(self):
        return {"path": self.path, "what": self.what, "seconds": self.total, "steps": self.steps}


def run(words, **rest):
    done = subprocess.run(words, capture_output=True, text=True, timeout=10 * PATIENCE_S, **rest)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def own_environment(folder):
    """As on a machine that has never had the project: no settings, no plans."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPARSETUNE_")}
    return {**kept, "XDG_CACHE_HOME": str(folder / "cache"), "SPARSETUNE_DEVICES__USE": '["cpu"]'}


def first_command():
    """What the README tells first."""
    block = re.search(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    return block.splitlines()[0].split("#")[0].split()


def from_clone(options, folder):
    watch = Watch("clone", "from a clone to the first plan: the README's first command")
    clone, command = folder / "clone", first_command()
    watch.run("git clone, of this disk", True, lambda: run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, clone]))
    environment = own_environment(folder)
    assert command[:4] == ["cargo", "run", "--release", "--"], command
    program = options.program
    if program:
        watch.leave_out("the first build", f"left out: {program.name} was given")
    else:
        build = {**environment, "CARGO_TARGET_DIR": str(folder / "target")}
        watch.run("the first build, crates fetched before", False, lambda: run(["cargo", "build", "--release", "--locked"], cwd=clone, env=build))
        program = folder / "target/release/sparsetune"
    told = watch.run(" ".join(command[4:]), True, lambda: run([program, *command[4:]], cwd=clone, env=environment))
    assert "plan" in told.lower(), told[-500:]
    return watch, program


def from_pip(options, folder):
    watch = Watch("pip", "from pip install to f(B)")
    wheel, environment = options.wheel, own_environment(folder)
    if wheel:
        watch.leave_out("the wheel's build", f"left out: {wheel.name} was given")
    else:
        made = folder / "wheels"
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", made, ROOT / "python"]
        watch.run("the wheel's build", False, lambda: run(build))
        wheel = next(made.glob("*.whl"))
    venv = folder / "venv"
    watch.run("a fresh environment", False, lambda: run([sys.executable, "-m", "venv", venv]))
    python = venv / "bin/python"
    # SciPy has the matrix of the example; NumPy is the wheel's own dependency. Both come from the index, or from pip's cache.
    watch.run("NumPy and SciPy from the index", False, lambda: run([python, "-m", "pip", "install", "--quiet", "numpy", "scipy"]))
    watch.run("pip install of the wheel", True, lambda: run([python, "-m", "pip", "install", "--quiet", wheel]))
    times = json.loads(run([python, "-c", PYTHON], env=environment, cwd=folder).splitlines()[-1])
    watch.add("import of NumPy and SciPy", False, times["libraries"])
    watch.add("import sparsetune, f(B)", True, times["first"])
    watch.add("until f(B) runs the tuned plan", True, times["tuned"] - times["first"])
    return watch


class Server:
    """A server on a folder of its own, until it is stopped."""

    def __init__(self, program, folder):
        command = [program, "serve", "--listen", "127.0.0.1:0", "--data", folder / "data"]
        self.log = open(folder / "server.log", "w", encoding="utf-8")
        self.process = subprocess.Popen(command, env=own_environment(folder), stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            self.process.kill()
            raise SystemExit(f"no server: {(folder / 'server.log').read_text()[-2000:]}")
        self.url = line.removeprefix("listening on ").strip()
        try:
            run([program, "ready", "--server", self.url, "--wait", "120"])
        except BaseException:
            self.stop()
            raise

    def ask(self, method, path, body=None, kind="application/json"):
        headers = {"Content-Type": kind} if body is not None else {}
        request = urllib.request.Request(self.url + path, method=method, data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.read()

    def stop(self):
        self.process.terminate()
        self.process.wait(60)
        self.process.stdout.close()
        self.log.close()


def by_browser(watch, server, folder, sync_playwright):
    with sync_playwright() as playwright:
        program = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu", "--no-first-run"])
        page = browser.new_page(viewport={"width": 1440, "height": 844})
        page.set_default_timeout(1000 * PATIENCE_S)
        watch.run("the page opens", True, lambda: page.goto(server.url + "/#submit"))

        def submit():
            page.locator("#submit-card").evaluate("card => { card.open = true; }")
            page.locator("#file").set_input_files(MATRIX)
            page.locator("#submit-go").click()
            page.wait_for_url(re.compile(r"/jobs/[0-9a-f-]{36}"))

        watch.run("a file is chosen and sent, the job's page opens", True, submit)
        link = page.locator("#plan-link")

        def searched():
            link.wait_for(state="visible")
            link.click()
            page.wait_for_url(re.compile(r"/plans/"))

        watch.run("the search, to the plan's page", True, searched)
        bundle = folder / "plan.stplan"

        def download():
            with page.expect_download() as saved:
                page.locator("#bundle").click()
            saved.value.save_as(bundle)

        watch.run("the bundle is made and downloaded", True, download)
        browser.close()
    return bundle


def by_http(watch, server, folder):
    watch.run("the page is fetched", True, lambda: server.ask("GET", "/jobs"))

    def submit():
        told = json.loads(server.ask("POST", "/v1/matrices?name=delaunay_n15", MATRIX.read_bytes(), "application/octet-stream"))
        body = {"matrix": told["digest"], "problem": {"op": "spmm", "n": 32}}
        return json.loads(server.ask("POST", "/v1/jobs", json.dumps(body).encode()))["id"]

    job = watch.run("a file and a job are sent", True, submit)

    def searched():
        while (told := json.loads(server.ask("GET", f"/v1/jobs/{job}")))["state"] in ("queued", "running"):
            time.sleep(0.05)
        assert told["state"] == "succeeded", told
        return told["plan"]

    plan, bundle = watch.run("the search", True, searched), folder / "plan.stplan"
    made = watch.run("the bundle is made and downloaded", True, lambda: server.ask("GET", f"/v1/plans/{plan}/bundle"))
    bundle.write_bytes(made)
    return bundle


def from_page(options, folder, program):
    playwright = None
    if options.browser != "no":
        try:
            from playwright.sync_api import sync_playwright as playwright
        except ImportError:
            if options.browser == "yes":
                raise SystemExit("Playwright is not installed: target/venv/bin/python has it after scripts/test") from None
    how = "in Chromium" if playwright else "by the page's requests, without a browser"
    watch = Watch("page", f"from the submit page to a running plan, {how}")
    server = Server(program, folder)
    try:
        bundle = by_browser(watch, server, folder, playwright) if playwright else by_http(watch, server, folder)
        watch.run("bundle run: the plan runs, checked and timed", True, lambda: run([program, "bundle", "run", bundle], env=own_environment(folder)))
    finally:
        server.stop()
    return watch


def machine():
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    busy = os.getloadavg()[0]
    return {"processor": names[0] if names else platform.processor(), "cores": os.cpu_count(), "load": round(busy, 1), "system": platform.platform()}


def table(report):
    lines = ["| path | step | seconds |", "|---|---|---|"]
    for path in report["paths"]:
        for step in path["steps"]:
            seconds = "not run" if step["seconds"] is None else f"{step['seconds']:.1f}"
            apart = "" if step["counts"] else " (not counted)"
            lines.append(f"| {path['path']} | {step['step']}{apart} | {seconds} |")
        lines.append(f"| {path['path']} | **{path['what']}** | **{path['seconds']:.1f}** |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paths", default="clone,pip,page", help="which of clone, pip and page, with commas (default: all)")
    parser.add_argument("--program", type=Path, help="a release build of this checkout: the clone is not built")
    parser.add_argument("--wheel", type=Path, help="a wheel of this checkout: none is built")
    parser.add_argument("--browser", choices=["yes", "no", "auto"], default="auto", help="drive the page in Chromium (default: where Playwright is)")
    parser.add_argument("--json", type=Path, help="also write the report to this file")
    options = parser.parse_args()
    for name in ("program", "wheel"):
        if path := getattr(options, name):
            setattr(options, name, path.resolve(strict=True))
    wanted = options.paths.split(",")
    if unknown := set(wanted) - {"clone", "pip", "page"}:
        parser.error(f"no path is called {', '.join(sorted(unknown))}")
    if "page" in wanted and "clone" not in wanted and not options.program:
        parser.error("the page needs a program: give --program, or the path clone, which builds one")
    with tempfile.TemporaryDirectory(prefix="stranger-") as name:
        folder, program, watches = Path(name), options.program, []
        report = {"at": datetime.date.today().isoformat(), "machine": machine(), "paths": []}
        if "clone" in wanted:
            watch, program = from_clone(options, folder)
            watches.append(watch)
        if "pip" in wanted:
            watches.append(from_pip(options, folder))
        if "page" in wanted:
            watches.append(from_page(options, folder, program))
        report["paths"] = [watch.told() for watch in watches]
    print(table(report))
    print(f"\n{report['at']}, {report['machine']['processor']}, {report['machine']['cores']} cores, load {report['machine']['load']}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
