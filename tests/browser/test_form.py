"""The form that submits a job: what becomes of files that are dropped, and of files that are refused."""

from playwright.sync_api import expect

DROP = """([selector, name]) => {
    const data = new DataTransfer();
    data.items.add(new File(["1 1"], name));
    const target = document.querySelector(selector);
    const told = kind => {
        const event = new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
        target.dispatchEvent(event);
        return event.defaultPrevented;
    };
    return [told("dragover"), told("drop")];
}"""


def test_a_file_that_misses_the_zone_is_taken_and_never_opened(visit):
    page = visit("/jobs")
    # Whoever does not prevent both lets the browser leave for the file.
    page.evaluate("document.getElementById('submit-card').open = false")
    assert page.evaluate(DROP, ["h1", "closed.mtx"]) == [True, True]
    assert page.evaluate("document.getElementById('file').files.length") == 0
    page.evaluate("document.getElementById('submit-card').open = true")
    assert page.evaluate(DROP, ["footer", "open.mtx"]) == [True, True]
    expect(page.locator("#drop-text")).to_contain_text("open.mtx")


def test_a_refused_file_is_told_of_where_it_was_chosen(visit):
    page = visit("/jobs#submit")
    page.watch.allow("42[0-9]|40[0-9]")
    page.evaluate("document.getElementById('submit-card').open = true")
    bad = {"name": "bad.mtx", "mimeType": "text/plain", "buffer": b"%%MatrixMarket matrix coordinate real general\n2 2 1\n9 9 1\n"}
    page.locator("#file").set_input_files(bad)
    page.locator("#submit-go").click()
    expect(page.locator("#file")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#file")).to_be_focused()
    expect(page.locator("#file")).to_have_attribute("aria-describedby", "drop-error")
    expect(page.locator("#drop-error")).to_contain_text("line")
    # Another file is another matter.
    page.locator("#file").set_input_files({**bad, "name": "other.mtx"})
    expect(page.locator("#drop-error")).to_have_count(0)
    assert page.locator("#file").get_attribute("aria-invalid") is None
