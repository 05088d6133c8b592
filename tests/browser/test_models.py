"""The models page: learned models are shown, activated and rolled back; a training is requested and shown, and what the
server refuses is told."""

from playwright.sync_api import expect
from watch import look


def test_a_training_is_asked_for_and_told_of(visit):
    page = visit("/models")
    page.get_by_role("button", name="Train for SpTRSV").click()
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


def test_learned_models_are_shown_activated_and_rolled_back(visit, learned):
    page = visit("/models", site=learned.api.url)
    part = page.locator("#learned article[data-op=spmm][data-class^='cpu/']")
    version = {name: part.locator("tr", has=page.locator(f"a[href='/v1/models/{name}']")) for name in (learned.first, learned.second)}
    in_use, other = version[learned.second], version[learned.first]
    expect(in_use.locator(".badge")).to_have_text("in use")
    expect(in_use).to_contain_text("boosted trees")
    expect(other.locator(".badge")).to_have_count(0)
    held_out = part.get_by_role("table", name="Held-out evaluation")
    told = learned.api.get(f"/v1/models/{learned.second}")
    choosers = [chooser["name"] for chooser in told["quality"]["choosers"]]
    assert {"lambdamart", "analytic", "random"} <= set(choosers)
    assert held_out.locator("tbody th code").all_text_contents() == choosers
    expect(held_out.locator("tbody th").first).to_contain_text("boosted trees")
    # Two versions are a line over time.
    expect(part.locator("svg .line-full")).to_have_count(1)
    features = part.get_by_role("table", name="Feature importance").locator("tbody th code")
    assert features.all_text_contents() == [part["feature"] for part in told["importance"]][:12] != []
    look(page)

    part.get_by_role("button", name=f"Activate {learned.first}").click()
    expect(page.locator("#models-message")).to_have_text("The model is in use.")
    expect(other.locator(".badge")).to_have_text("in use")
    expect(in_use.locator(".badge")).to_have_count(0)
    assert learned.api.get(f"/v1/models/{learned.first}")["active"]

    part.get_by_role("button", name="Roll back").click()
    expect(page.locator("#models-message")).to_have_text("The last change was rolled back.")
    expect(in_use.locator(".badge")).to_have_text("in use")
    expect(part.locator("li").first).to_contain_text(learned.second)
    assert learned.api.get(f"/v1/models/{learned.second}")["active"]
    page.set_viewport_size({"width": 390, "height": 844})
    look(page)
