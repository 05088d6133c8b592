"""What a person does with a plan: copies the lines that use it, and downloads its bundle."""

import pytest
from playwright.sync_api import expect
from watch import look

WAYS = ("python", "cpp", "cli")


@pytest.mark.parametrize("width", [1440, 390])
def test_a_plan_begins_with_the_lines_that_use_it(visit, board, width):
    page = visit(f"/plans/{board.plan}", width)
    assert page.locator("main section").first.get_attribute("id") == "use"
    for way in WAYS:
        lines = page.locator(f"#use-{way}")
        expect(lines).to_contain_text(board.plan)
        expect(lines).to_contain_text(page.watch.origin)
        assert len(lines.inner_text().strip().splitlines()) == 3
    look(page)


def test_the_lines_are_copied_as_they_stand(visit, chromium, board):
    context = chromium.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = visit(f"/plans/{board.solve_plan}", context=context)
    for way in WAYS:
        page.locator(f"[data-copy-from='#use-{way}']").click()
        expect(page.locator(f"[data-copy-from='#use-{way}']")).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == page.locator(f"#use-{way}").inner_text().strip()
    expect(page.locator("#use-python")).to_contain_text("x = plan(b)")


def test_the_bundle_is_downloaded_whole(visit, board):
    page = visit(f"/plans/{board.plan}")
    with page.expect_download() as started:
        page.locator("#bundle").click()
    download = started.value
    assert download.suggested_filename == f"{board.plan}.stplan"
    content = download.path().read_bytes()
    assert content.startswith(b"PK") and b"sparsetune bundle" in content
