"""Without a mouse: the order of Tab, what has the focus is seen, Enter submits."""

import re

import pytest
from playwright.sync_api import expect

FOCUS = """() => {
    const element = document.activeElement, style = getComputedStyle(element), box = element.getBoundingClientRect();
    const seen = (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1) || style.boxShadow !== "none";
    return { name: element.id || element.className || element.textContent.trim().slice(0, 30) || element.tagName, tag: element.tagName,
        seen: seen || element.matches("rapi-doc") || [...document.querySelectorAll(":has(:focus-visible)")].some(e => e.matches("label") && getComputedStyle(e).outlineStyle !== "none"),
        inside: box.width > 0 && box.right > 0 && box.left < innerWidth };
}"""


def walk(page, most):
    """What Tab goes through from the top of the page, to the end of it or to `most` places."""
    places = []
    for _ in range(most):
        page.keyboard.press("Tab")
        place = page.evaluate(FOCUS)
        if place["tag"] == "BODY":
            break
        places.append(place)
    return places


def test_skip_link_comes_first(visit, board):
    page = visit("/")
    page.keyboard.press("Tab")
    skip = page.locator("a.skip")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.getElementById('main').contains(document.activeElement)")


@pytest.mark.parametrize("path", ["/", "/jobs/{job}", "/matrices/{digest}", "/plans/{plan}", "/compare?matrix={digest}", "/devices"])
def test_focus_is_seen_wherever_it_is(visit, board, path):
    page = visit(path.format(**vars(board)))
    page.wait_for_load_state("networkidle")
    places = walk(page, 60)
    unseen = [place for place in places if not (place["seen"] and place["inside"])]
    assert not unseen, unseen
    assert len(places) > 10


def test_tab_reaches_find_form_and_filters(visit, board):
    page = visit("/")
    if not page.locator("#file").is_visible():
        page.locator("summary", has_text="Submit").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#submit-go")).to_be_visible()
        page.evaluate("document.activeElement.blur()")
        page.locator("a.skip").evaluate("element => { element.focus(); element.blur(); }")
    names = [place["name"] for place in walk(page, 60)]
    order = [names.index(name) for name in ("find", "file", "op", "n", "device", "submit-go", "by-state")]
    assert order == sorted(order), names


def test_enter_submits(visit, api, board):
    page = visit("/")
    if not page.locator("#matrix").is_visible():
        page.locator("summary", has_text="Submit").press("Enter")
    page.locator("#matrix").fill(board.other)
    page.locator("#device").select_option("cpu")
    page.locator("#n").fill("4")
    page.locator("#n").press("Enter")
    page.wait_for_url(re.compile("/jobs/[0-9a-f-]{36}$"))
    expect(page.locator("#job")).to_have_attribute("data-state", "succeeded")


def test_filters_apply_by_keyboard(visit, board):
    page = visit("/")
    page.locator("#by-state").focus()
    page.keyboard.press("s")
    page.wait_for_url(re.compile("state=succeeded"))
    expect(page.locator(f"tr[data-job='{board.job}']")).to_be_visible()
