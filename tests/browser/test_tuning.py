"""From a file to a plan, as a person goes: choose or drop a file, watch the job, read the plan, the matrix, the comparison."""

import base64
import re

from playwright.sync_api import expect


def submit_form(page):
    """The form, opened where it is folded away."""
    if not page.locator("#file").is_visible():
        page.locator("summary", has_text="Submit").click()
    return page.locator("#submit")


def test_a_chosen_file_becomes_a_plan(visit, api, delaunay):
    page = visit("/")
    submit_form(page)
    page.set_input_files("#file", str(delaunay))
    page.select_option("#device", "cpu")
    page.fill("#n", "8")
    # The bar is there for as long as the upload takes, which here is a moment: what it was set to is kept.
    page.evaluate("""() => {
        window.seen = [];
        const bar = document.getElementById("upload-progress");
        new MutationObserver(() => window.seen.push([bar.hidden, bar.value])).observe(bar, { attributes: true });
        document.getElementById("submit").addEventListener("submit", () => {}, true);
        addEventListener("pagehide", () => sessionStorage.setItem("seen", JSON.stringify(window.seen)));
    }""")
    page.click("#submit-go")
    page.wait_for_url(re.compile("/jobs/[0-9a-f-]{36}$"))
    seen = page.evaluate("JSON.parse(sessionStorage.getItem('seen'))")
    assert any(not hidden and value > 0 for hidden, value in seen), seen

    job = page.url.rsplit("/", 1)[1]
    state = page.locator("#job")
    log = page.locator("#log li")
    expect(page.locator("#log")).to_be_visible()
    # While it runs, trials come in without a reload.
    page.evaluate("document.body.dataset.same = 'yes'")
    expect(state).to_have_attribute("data-state", "succeeded")
    told = api.job(job)
    expect(page.locator("#best")).to_contain_text("×")
    expect(page.locator("#best")).to_contain_text(told["best"]["candidate"]["family"])
    # The bar is of all work, and full at the end.
    expect(page.locator("#progress")).to_have_js_property("value", 1000)
    expect(page.locator("#count")).to_have_text(f"{told['progress']['done']} of {told['progress']['total']} trials")
    expect(page.locator("#best-chart canvas")).to_be_visible()
    expect(page.locator("#trials-chart canvas")).to_be_visible()
    expect(page.locator("#funnel svg").first).to_be_visible()
    assert log.count() > 0
    assert page.evaluate("window.shifted") < 0.02, page.evaluate("window.shifts")

    page.click("a#plan-link")
    page.wait_for_url(f"**/plans/{told['plan']}")
    the_plan_says_what_the_api_says(page, api.get(f"/v1/plans/{told['plan']}"))
    page.goto(page.watch.origin + f"/matrices/{told['matrix']}")
    the_matrix_has_its_pictures(page, told)


def three_digits(value):
    """As format.rs writes a figure."""
    places = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{places}f}"


def micros(us):
    for size, unit in ((1e3, "µs"), (1e6, "ms"), (1e9, "s")):
        if us < size:
            return f"{three_digits(us / size * 1e3)} {unit}"
    raise ValueError(us)


def the_plan_says_what_the_api_says(page, plan):
    expect(page.locator("#winner")).to_contain_text(plan["candidate"]["family"])
    expect(page.locator(".figures .figure").first).to_have_text(micros(plan["measured"]["median_us"]))
    expect(page.locator("main")).to_contain_text(f"{three_digits(plan['speedup'])}×")
    expect(page.locator("main")).to_contain_text(micros(plan["baseline"]["median_us"]))
    expect(page.locator("#roofline svg").first).to_be_visible()
    expect(page.locator("#why")).to_be_visible()
    # A plan of the CPU has no kernel text to show, and says so.
    if not (plan.get("launch") or {}).get("source"):
        expect(page.locator("#source")).to_contain_text(re.compile(r"\w{3}"))


def the_matrix_has_its_pictures(page, job):
    spy = page.locator("#spy img")
    expect(spy).to_be_visible()
    page.wait_for_function("() => document.querySelector('#spy img').naturalWidth > 0")
    expect(page.locator("#row-lengths svg").first).to_be_visible()
    expect(page.locator("#levels svg").first).to_be_visible()
    expect(page.locator("#digest")).to_contain_text(job["matrix"])
    expect(page.locator(f"#plans a[href='/plans/{job['plan']}']")).to_be_visible()


def test_tuning_from_a_matrix_page_names_the_matrix(visit, board):
    page = visit(f"/matrices/{board.other}")
    page.get_by_role("link", name="Tune it").first.click()
    expect(page.locator("#matrix")).to_have_value(board.other)
    expect(page.locator("#submit-go")).to_be_visible()


def test_compare_sets_plans_side_by_side(visit, board):
    page = visit(f"/compare?matrix={board.digest}")
    expect(page.locator("#comparison")).to_be_visible()
    expect(page.locator(f"a[href='/plans/{board.plan}']").first).to_be_attached()


DROP = """([name, packed]) => {
    const bytes = Uint8Array.from(atob(packed), letter => letter.charCodeAt(0));
    const carried = new DataTransfer();
    carried.items.add(new File([bytes], name));
    const drop = document.getElementById("drop");
    for (const kind of ["dragenter", "dragover", "drop"]) {
        drop.dispatchEvent(new DragEvent(kind, { dataTransfer: carried, bubbles: true, cancelable: true }));
    }
}"""


def drop_file(page, name, content):
    submit_form(page)
    page.evaluate(DROP, [name, base64.b64encode(content).decode()])


def test_a_dropped_file_becomes_a_job(visit, api, board):
    from service import band

    page = visit("/")
    drop_file(page, "dropped.mtx", band(302))
    expect(page.locator("#drop")).to_contain_text("dropped.mtx")
    page.select_option("#device", "cpu")
    page.fill("#n", "8")
    page.click("#submit-go")
    page.wait_for_url(re.compile("/jobs/[0-9a-f-]{36}$"))
    expect(page.locator("#job")).to_have_attribute("data-state", "succeeded")
    expect(page.locator("h1")).to_contain_text("dropped")


def test_a_solve_is_asked_for_by_form(visit, api, board):
    page = visit("/")
    submit_form(page)
    page.fill("#matrix", board.other)
    page.select_option("#op", "sptrsv")
    page.select_option("#device", "cpu")
    expect(page.locator("#n")).to_be_hidden()
    page.click("#submit-go")
    page.wait_for_url(re.compile("/jobs/[0-9a-f-]{36}$"))
    assert api.job(page.url.rsplit("/", 1)[1])["problem"]["op"] == "sptrsv"
    expect(page.locator("#job")).to_have_attribute("data-state", "succeeded")


def test_a_bad_file_is_refused_in_words(visit, board):
    page = visit("/")
    page.watch.allow(r"\b4(00|22)\b")
    drop_file(page, "bad.mtx", b"%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1.0\n2 nonsense 1.0\n")
    page.click("#submit-go")
    expect(page.locator("#submit")).to_contain_text(re.compile(r"line 4\b"))
    # What was refused can be put right without a reload.
    expect(page.locator("#submit-go")).to_be_enabled()


def test_nothing_chosen_is_said(visit):
    page = visit("/")
    submit_form(page)
    page.click("#submit-go")
    expect(page.locator("#submit-message")).not_to_be_empty()
