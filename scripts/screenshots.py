"""Pictures of the dashboard, at 1440 and 390 pixels and in both themes.

    scripts/screenshots.py --server URL --out DIR     every page of a running server
    scripts/screenshots.py --documents                those of docs/screenshots, made anew: on a server of its own, which searches on this
                                                      machine's processor, beside MKL where it is installed

Needs Chromium, a release build (target/release/sparsetune, or $SPARSETUNE) and the environment of scripts/test: target/venv/bin/python scripts/screenshots.py ...
"""

import argparse
import base64
import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
SIZES = {1440: 900, 390: 844}
SHOTS = ROOT / "docs/screenshots"


def get(server, path):
    with urllib.request.urlopen(server + path, timeout=60) as response:
        return json.loads(response.read())


def post(server, path, body, kind):
    request = urllib.request.Request(server + path, method="POST", data=body, headers={"Content-Type": kind})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


def pages(server, chosen):
    """What to show: the job given, or else the newest that succeeded, and what belongs to it."""
    job = get(server, f"/v1/jobs/{chosen}") if chosen else get(server, "/v1/jobs?state=succeeded&limit=1")["items"][0]
    digests = ",".join(matrix["digest"] for matrix in get(server, "/v1/matrices?limit=3")["items"])
    return {
        "jobs": "/", "job": f"/jobs/{job['id']}", "matrices": "/matrices", "matrix": f"/matrices/{job['matrix']}",
        "plan": f"/plans/{job['plan']}", "search": f"/plans/{job['plan']}/search", "how": "/how",
        "compare": f"/compare?matrix={job['matrix']}", "side": f"/compare?matrices={digests}", "overview": "/overview",
        "devices": "/devices", "models": "/models", "webhooks": "/webhooks", "docs": "/docs", "sign-in": "/login",
    }


def shoot(browser, server, path, width, theme, whole=True):
    """The page as PNG."""
    context = browser.new_context(viewport={"width": width, "height": SIZES[width]}, color_scheme=theme, device_scale_factor=1.5)
    try:
        page = context.new_page()
        page.goto(server + path, wait_until="networkidle")
        return page.screenshot(full_page=whole)
    finally:
        context.close()


def every_page(browser, server, options):
    options.out.mkdir(parents=True, exist_ok=True)
    for name, path in pages(server, options.job).items():
        if options.only and name not in options.only:
            continue
        for theme in ("light", "dark"):
            for width in SIZES:
                picture = shoot(browser, server, path, width, theme, name != "docs")
                (options.out / f"{name}-{width}-{theme}.png").write_bytes(picture)


class Server:
    """A server in a folder of its own, on this machine's processor."""

    def __init__(self, folder):
        program = os.environ.get("SPARSETUNE", str(ROOT / "target/release/sparsetune"))
        environment = {**os.environ, "SPARSETUNE_DEVICES__USE": '["cpu"]'}
        with open(folder / "log", "wb") as log:
            command = [program, "serve", "--listen", "127.0.0.1:0", "--data", str(folder / "data")]
            self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        self.url = self.process.stdout.readline().removeprefix("listening on ").strip()
        self.ready = [program, "ready", "--server", self.url, "--wait", "300"]

    def tuned(self, digest, problem, search):
        """The job once it has ended."""
        body = {"matrix": digest, "problem": problem, "device": "cpu", "search": search}
        job = post(self.url, "/v1/jobs", json.dumps(body).encode(), "application/json")["id"]
        while (told := get(self.url, f"/v1/jobs/{job}"))["state"] in ("queued", "running"):
            time.sleep(0.5)
        assert told["state"] == "succeeded", told
        return told

    def uploaded(self, file, name):
        return post(self.url, f"/v1/matrices?name={urllib.parse.quote(name)}", file, "application/octet-stream")["digest"]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def beside(browser, pictures):
    """Several pictures in a row, as one."""
    images = "".join(f'<img src="data:image/png;base64,{base64.b64encode(one).decode()}" width="390">' for one in pictures)
    page = browser.new_page(viewport={"width": 1250, "height": 900}, device_scale_factor=1.5)
    page.set_content(f'<body style="margin:0;display:flex;gap:20px;padding:10px;background:#777;align-items:flex-start;height:fit-content">{images}</body>')
    return page.locator("body").screenshot()


def draw(browser, server, job):
    """The pictures of docs/screenshots, of this job."""
    paths = pages(server, job)
    SHOTS.mkdir(parents=True, exist_ok=True)
    for name in ("job", "plan", "search"):
        (SHOTS / f"{name}.png").write_bytes(shoot(browser, server, paths[name], 1440, "light", name == "job"))
    narrow = [shoot(browser, server, paths[name], 390, "dark" if name == "job" else "light", False) for name in ("jobs", "job", "matrix")]
    (SHOTS / "narrow.png").write_bytes(beside(browser, narrow))


def documents(browser):
    """Searches, and draws: kernels of a debug build would be slow."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            subprocess.run(server.ready, check=True)
            digest = server.uploaded((ROOT / "data/delaunay_n15.mtx.gz").read_bytes(), "delaunay_n15")
            for n in (1, 128):
                server.tuned(digest, {"op": "spmm", "n": n}, {})
            draw(browser, server.url, server.tuned(digest, {"op": "spmm", "n": 32}, {"strategy": "exhaustive"})["id"])
        finally:
            server.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", action="store_true", help="make the pictures of docs/screenshots anew")
    parser.add_argument("--server")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--job", help="the job to show; else the newest that succeeded")
    parser.add_argument("--only", action="append", help="a page's name; may be given again")
    options = parser.parse_args()
    if not options.documents and not (options.server and options.out):
        parser.error("either --documents, or --server and --out")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
        if options.documents:
            documents(browser)
        else:
            every_page(browser, options.server.rstrip("/"), options)
        browser.close()


if __name__ == "__main__":
    main()
