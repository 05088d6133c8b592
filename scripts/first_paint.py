"""First contentful paint of pages: scripts/first_paint.py URL..., the least and the median of ten loads with a cold cache.

Needs Chromium and the environment of scripts/test: target/venv/bin/python scripts/first_paint.py ...
"""

import statistics
import sys

from playwright.sync_api import sync_playwright

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
LOADS = 10
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
WEIGHT = "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')].reduce((sum, e) => sum + e.transferSize, 0)"


def load(browser, url):
    context = browser.new_context(viewport={"width": 1440, "height": 844})
    page = context.new_page()
    page.goto(url)
    paint = page.wait_for_function("() => " + PAINT).json_value()
    weight = page.evaluate(WEIGHT)
    context.close()
    return paint, weight


def main():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
        print(f"{'min ms':>8} {'median':>8} {'bytes':>8}")
        for url in sys.argv[1:]:
            # Not counted: the browser itself comes up with its first page.
            load(browser, url)
            paints, weights = zip(*(load(browser, url) for _ in range(LOADS)))
            print(f"{min(paints):>8.0f} {statistics.median(paints):>8.0f} {max(weights):>8}  {url}")
        browser.close()


if __name__ == "__main__":
    main()
