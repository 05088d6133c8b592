"""Pictures of the dashboard: scripts/screenshots.py --server URL --out DIR, at two widths and in two themes.

Needs Chromium and the environment of scripts/test: target/venv/bin/python scripts/screenshots.py ...
"""

import argparse
import json
import urllib.request
from pathlib import Path

from playwright.sync_api import sync_playwright

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update"]


def get(server, path):
    with urllib.request.urlopen(server + path, timeout=60) as response:
        return json.loads(response.read())


def pages(server, chosen):
    """What to show: the job given, or else the newest that succeeded, and what belongs to it."""
    job = get(server, f"/v1/jobs/{chosen}") if chosen else get(server, "/v1/jobs?state=succeeded&limit=1")["items"][0]
    return {
        "jobs": "/", "job": f"/jobs/{job['id']}", "matrix": f"/matrices/{job['matrix']}", "plan": f"/plans/{job['plan']}",
        "search": f"/plans/{job['plan']}/search", "how": "/how",
        "compare": f"/compare?matrix={job['matrix']}", "devices": "/devices", "docs": "/docs",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--job", help="the job to show; else the newest that succeeded")
    parser.add_argument("--only", action="append", help="a page's name; may be given again")
    options = parser.parse_args()
    server = options.server.rstrip("/")
    options.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
        for theme in ("light", "dark"):
            for width, height in ((1280, 900), (390, 844)):
                size = {"width": width, "height": height}
                context = browser.new_context(viewport=size, color_scheme=theme, device_scale_factor=1.5)
                page = context.new_page()
                for name, path in pages(server, options.job).items():
                    if options.only and name not in options.only:
                        continue
                    page.goto(server + path, wait_until="networkidle")
                    page.screenshot(path=options.out / f"{name}-{width}-{theme}.png", full_page=name != "docs")
                context.close()
        browser.close()


if __name__ == "__main__":
    main()
