"""A job that runs, watched: over a reload, a lost connection, a server that restarts; cancelled from the list."""

import re
import time

import pytest
from cable import Cable
from playwright.sync_api import expect
from service import Api, until

# What a browser and its scripts say of a connection that is cut, as the tests here do.
BROKEN = "ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE|ERR_SOCKET|Failed to fetch|network error|htmx"


def on_page(page):
    """Trials that the page knows of; the sentence under the first chart counts them."""
    text = page.locator("#best-chart-summary").text_content()
    found = re.search(r"of (\d+) trials", text)
    return int(found[1]) if found else 0


def shows_more_than(page, count):
    page.wait_for_function("""count => {
        const found = /of (\\d+) trials/.exec(document.getElementById("best-chart-summary").textContent);
        return found && Number(found[1]) > count;
    }""", arg=count)
    return on_page(page)


def the_page_agrees(page, api, job):
    """No trial lost, none twice: once the job has ended, the page knows as many as there are."""
    expect(page.locator("#job")).to_have_attribute("data-state", re.compile("succeeded|cancelled"))
    tried = api.tried(job)
    assert tried == sorted(set(tried))
    expect(page.locator("#best-chart-summary")).to_contain_text(re.compile(rf"of {len(tried)} trials"))


def test_cancel_from_the_list_is_seen_in_another_window(visit, api, long_job):
    page, other = visit("/"), visit("/")
    row = page.locator(f"tr[data-job='{long_job}']")
    expect(row.locator(".badge")).to_have_text("running")
    cancel = page.locator(f"button[data-cancel='{long_job}']")
    cancel.click()
    # The first click only asks.
    assert api.job(long_job)["state"] == "running"
    expect(cancel).to_have_text(re.compile(r"\w+.*\?|[Rr]eally|[Ss]ure"))
    cancel.click()
    for window in (page, other):
        expect(window.locator(f"tr[data-job='{long_job}'] .badge")).to_have_text("cancelled")
        assert window.evaluate("window.shifted") < 0.02, window.evaluate("window.shifts")


def test_reload_and_lost_connection_lose_nothing(visit, api, url, long_job):
    cable = Cable(url)
    page = visit(f"/jobs/{long_job}", site=cable.url)
    page.watch.allow(BROKEN)
    before = shows_more_than(page, 1)
    page.reload()
    reloaded = shows_more_than(page, before - 1)
    assert page.evaluate("window.shifted") < 0.02, page.evaluate("window.shifts")

    cable.pull()
    expect(page.locator("#connection")).not_to_be_empty()
    # The job does not wait for those who watch it.
    until(lambda: len(api.tried(long_job)) > reloaded + 1, "trials while the page is cut off")
    cable.plug()
    shows_more_than(page, reloaded + 1)
    expect(page.locator("#connection")).to_be_empty()
    api.cancel(long_job)
    the_page_agrees(page, api, long_job)
    cable.close()


def test_without_its_stream_a_page_asks_and_sees_the_end(visit, api, long_job, chromium):
    context = chromium.new_context(viewport={"width": 1440, "height": 844})
    context.route("**/events**", lambda route: route.abort())
    page = visit(f"/jobs/{long_job}", context=context)
    page.watch.allow(f"ERR_FAILED|{BROKEN}")
    expect(page.locator("#connection")).not_to_be_empty()
    before = page.locator("#count").text_content()
    expect(page.locator("#count")).not_to_have_text(before)
    api.cancel(long_job)
    expect(page.locator("#job")).to_have_attribute("data-state", "cancelled")
    expect(page.locator("#connection")).to_be_empty()
    # The page of the ended job took its place.
    expect(page.locator("button[data-cancel]")).to_have_count(0)


@pytest.mark.parametrize("late", ["htmx-sse.min", "job.", "job-charts", "uPlot.iife.min", "app."])
def test_a_script_that_comes_late_costs_nothing(visit, api, long_job, chromium, late):
    def wait(route):
        time.sleep(1.5)
        route.continue_()

    context = chromium.new_context(viewport={"width": 1440, "height": 844})
    context.route(re.compile(rf"/{re.escape(late)}[^/]*\.?js"), wait)
    page = visit(f"/jobs/{long_job}", context=context)
    shows_more_than(page, on_page(page))
    api.cancel(long_job)
    the_page_agrees(page, api, long_job)
    expect(page.locator("#connection")).to_be_empty()


def test_the_focus_stays_on_the_page_when_the_button_goes(visit, api, long_job):
    page = visit(f"/jobs/{long_job}")
    cancel = page.locator(f"button[data-cancel='{long_job}']")
    cancel.click()
    cancel.click()
    expect(page.locator("#job")).to_have_attribute("data-state", "cancelled")
    expect(cancel).to_have_count(0)
    expect(page.locator("#job-title")).to_be_focused()


def test_a_restarted_server_goes_on(visit, process, delaunay):
    server = process()
    api = Api(server.url)
    digest = api.upload(delaunay.read_bytes(), "delaunay_n15")
    job = api.submit(digest, {"op": "spmm", "n": 16}, search={"strategy": "exhaustive", "trials": 12})
    page = visit(f"/jobs/{job}", site=server.url)
    page.watch.allow(BROKEN)
    shows_more_than(page, 1)
    server.stop()
    expect(page.locator("#connection")).not_to_be_empty()
    server.start()
    expect(page.locator("#connection")).to_be_empty()
    assert api.ended(job)["state"] == "succeeded"
    the_page_agrees(page, api, job)
    # It was never reloaded.
    assert page.evaluate("performance.getEntriesByType('navigation').length") == 1
