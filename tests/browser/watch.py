"""A browser page under watch: what it must never do is collected, and fails the test that opened it."""

import re
from importlib.resources import files
from pathlib import Path

AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
# Everything that axe-core has but its experiments: WCAG 2.2 up to AA, and its best practices.
AXE_RUN = """() => axe.run(document, { resultTypes: ["violations"] }).then(found => found.violations.flatMap(({ id, help, nodes }) =>
    nodes.map(({ target, failureSummary }) => `${id} (${help}) at ${target.join(" ")}: ${failureSummary.replace(/\\s+/g, " ")}`)))"""
MEASURES = Path(__file__).with_name("measures.js").read_text()
# Sums what moves without anybody having touched the page.
SHIFTS = """
    window.shifted = 0;
    window.shifts = [];
    new PerformanceObserver(list => {
        for (const entry of list.getEntries()) {
            if (entry.hadRecentInput) continue;
            window.shifted += entry.value;
            window.shifts.push(`${entry.value.toFixed(4)} ${entry.sources.map(s => s.node?.id || s.node?.className || s.node?.nodeName).join(" ")}`);
        }
    }).observe({ type: "layout-shift", buffered: true });
"""


class Watch:
    """Console errors and warnings, uncaught exceptions, requests elsewhere, requests that fail."""

    def __init__(self, page, origin):
        self.page, self.origin, self.told, self.allowed = page, origin, [], []
        page.add_init_script(SHIFTS)
        page.on("console", lambda message: self.note(message.type in ("error", "warning"), f"console {message.type}: {message.text} {message.location.get('url', '')}"))
        page.on("pageerror", lambda error: self.note(True, f"exception: {error}"))
        page.on("dialog", self.dialog)
        page.on("request", lambda request: self.note(not request.url.startswith((origin + "/", "data:", "blob:")), f"request to {request.url}"))
        page.on("response", lambda response: self.note(response.status >= 400, f"{response.status} of {response.url}"))
        page.on("requestfailed", self.failed)

    def note(self, bad, text):
        if bad:
            self.told.append(text)

    def dialog(self, dialog):
        self.told.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def failed(self, request):
        # Leaving a page ends its streams, its timer's requests and its downloads; that is no failure.
        if request.failure != "net::ERR_ABORTED":
            self.told.append(f"{request.failure} for {request.url}")

    def allow(self, pattern):
        """What this test brings about on purpose."""
        self.allowed.append(re.compile(pattern))

    def check(self):
        left = [text for text in self.told if not any(pattern.search(text) for pattern in self.allowed)]
        assert not left, "the page misbehaved:\n" + "\n".join(dict.fromkeys(left))


def measure(page, name):
    return page.evaluate(f"name => ({MEASURES})[name]()", name)


def violations(page):
    """What axe-core finds on the page as it now stands."""
    if not page.evaluate("Boolean(window.axe)"):
        page.evaluate(AXE)
    return page.evaluate(AXE_RUN)


def look(page, themes=("light", "dark")):
    """Overflow, contrast and accessibility of the page as it now stands, in each theme."""
    width = page.viewport_size["width"]
    found = measure(page, "overflow")
    # Text below the window has no pixels to ask for; the page is shown whole.
    page.set_viewport_size({"width": width, "height": min(page.evaluate("document.documentElement.scrollHeight"), 12000)})
    for theme in themes:
        page.emulate_media(color_scheme=theme)
        # Colours that move between themes are there once no transition runs any more.
        page.wait_for_function("document.getAnimations().every(a => a.playState !== 'running' || a.effect.getTiming().iterations === Infinity)")
        found += [f"{theme}: {text}" for text in measure(page, "contrast") + violations(page)]
    assert not found, f"{page.url} at {width} px:\n" + "\n".join(found)
