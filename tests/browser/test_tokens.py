"""A server with tokens: nothing without one; with one, everything, event streams as well; out again by a click."""

import re

import pytest
from playwright.sync_api import expect
from service import Api
from watch import look

TOKEN = "a token of sixteen or more"


@pytest.fixture
def guarded(process):
    return process(SPARSETUNE_SERVER__TOKENS=f'["{TOKEN}"]')


def test_sign_in_and_out(visit, guarded, delaunay):
    page = visit("/", site=guarded.url)
    page.watch.allow(r"\b40[13]\b|\b422\b")
    page.wait_for_url(re.compile("/login"))
    look(page)
    page.fill("input#token", "another token, a wrong one")
    page.locator("form#sign-in button").click()
    expect(page.locator("main")).to_contain_text(re.compile("token", re.I))
    expect(page.locator("form#sign-in")).to_be_visible()
    assert page.context.cookies() == []

    page.fill("input#token", TOKEN)
    page.locator("input#token").press("Enter")
    page.wait_for_url(guarded.url + "/")
    expect(page.locator("form#submit")).to_be_attached()
    for cookie in page.context.cookies():
        assert cookie["httpOnly"] and cookie["sameSite"] in ("Strict", "Lax") and TOKEN not in cookie["value"], cookie

    # The stream of a job is let in by the same cookie.
    api = Api(guarded.url, TOKEN)
    job = api.submit(api.upload(delaunay.read_bytes(), "delaunay_n15"), {"op": "spmm", "n": 8}, search={"top_k": 3})
    page.goto(f"{guarded.url}/jobs/{job}")
    expect(page.locator("#job")).to_have_attribute("data-state", "succeeded")
    expect(page.locator("#connection")).to_be_empty()

    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url(re.compile("/login"))
    page.goto(f"{guarded.url}/jobs/{job}")
    page.wait_for_url(re.compile("/login"))
