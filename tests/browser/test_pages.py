"""Every page, at both widths and in both themes: readable, accessible, no wider than the window, light, and from nowhere else."""

import pytest
from conftest import HOSTILE
from playwright.sync_api import expect
from watch import look, measure

# By name: the path, and what is there once the page has said all it has to say.
PAGES = {
    "jobs": ("/", "#jobs tr[data-job]"),
    "jobs that succeeded": ("/jobs?state=succeeded", "#jobs tr[data-job]"),
    "no such jobs": ("/jobs?state=failed&kind=tune", ".empty"),
    "job": ("/jobs/{job}", "#funnel svg"),
    "job of a solve": ("/jobs/{solve}", "#funnel"),
    "matrices": ("/matrices", "main table a"),
    "matrix": ("/matrices/{digest}", "#levels svg"),
    "plan": ("/plans/{plan}", "#winner"),
    "plan of a solve": ("/plans/{solve_plan}", "#winner"),
    "search": ("/plans/{plan}/search", "#papers"),
    "search of a solve": ("/plans/{solve_plan}/search", "#papers"),
    "how": ("/how", "#rules"),
    "compare": ("/compare?matrix={digest}", "#comparison"),
    "compare nothing": ("/compare", "main h1"),
    "jobs side by side": ("/compare?jobs={job},{solve}", "#side"),
    "matrices side by side": ("/compare?matrices={digest},{other}", "#side"),
    "overview": ("/overview", "#overview"),
    "devices": ("/devices", "#devices"),
    "models": ("/models", "#models"),
    "webhooks": ("/webhooks", "#webhooks"),
    "docs": ("/docs", "rapi-doc"),
    "sign in": ("/login", "main h1"),
}
WEIGHT_BYTES = 300_000


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_sound(visit, board, name, width):
    path, sign = PAGES[name]
    page = visit(path.format(**vars(board)), width)
    expect(page.locator(sign).first).to_be_visible()
    page.wait_for_load_state("networkidle")
    assert measure(page, "weight") < WEIGHT_BYTES
    assert page.evaluate("window.shifted") < 0.02, page.evaluate("window.shifts")
    look(page)


@pytest.mark.parametrize("path", ["/nowhere", "/jobs/0193a7c4-2222-7222-8333-444455556666", "/matrices/" + "0" * 64])
def test_what_is_not_there_is_said_in_a_page(visit, path):
    # The browser's console tells of every answer of this kind.
    page = visit("/devices")
    page.watch.allow(r"404")
    response = page.goto(page.watch.origin + path)
    assert response.status == 404
    expect(page.locator("main h1")).to_be_visible()
    expect(page.get_by_role("navigation", name="Main")).to_be_visible()
    look(page)


@pytest.mark.parametrize("name", ["jobs", "job", "matrices", "matrix", "plan", "search", "how", "compare", "no such jobs"])
def test_a_hostile_name_stays_text(visit, board, name):
    path, sign = PAGES[name]
    page = visit(path.format(**vars(board)))
    expect(page.locator(sign).first).to_be_visible()
    page.wait_for_load_state("networkidle")
    # An element out of the name would have asked for /x, which the watch tells, or shown a dialog.
    assert page.locator("[onerror]").count() == 0
    assert "49" not in page.title()
    if name in ("jobs", "job", "matrices", "matrix", "plan"):
        expect(page.get_by_text(HOSTILE[:28]).first).to_be_attached()


def test_the_theme_stays_over_pages(visit):
    page = visit("/")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("[data-theme-toggle]").click()
    after = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert before != after
    page.goto(page.watch.origin + "/devices")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == after


def test_find_leads_to_matrix_and_job(visit, board):
    page = visit("/devices")
    for text, place in [(board.digest, f"/matrices/{board.digest}"), (board.job, f"/jobs/{board.job}"), (board.plan, f"/plans/{board.plan}")]:
        page.locator("#find").fill(text)
        page.locator("#find").press("Enter")
        page.wait_for_url(page.watch.origin + place)
