"""The page of models: a training is asked for and seen, and what the server refuses is told."""

from playwright.sync_api import expect
from watch import look


def test_a_training_is_asked_for_and_told_of(visit):
    page = visit("/models")
    page.get_by_role("button", name="Train for sptrsv").click()
    expect(page.locator("#models-message")).to_contain_text("queued")
    # However it ends: there may be too little to learn from.
    page.wait_for_load_state("networkidle")
    look(page)


def test_what_is_refused_is_told(visit):
    page = visit("/models")
    page.watch.allow("404")
    page.evaluate("""() => {
        const button = document.createElement("button");
        button.dataset.activate = "none";
        button.textContent = "Use none";
        document.getElementById("learned").append(button);
    }""")
    page.get_by_role("button", name="Use none").click()
    expect(page.locator("#models-message")).to_have_attribute("role", "alert")
    expect(page.locator("#models-message")).to_contain_text("there is no model none")
