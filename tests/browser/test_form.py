"""The form that submits a job: what becomes of files that are dropped, of files that are refused, and of links that fill it
in."""

import re
import tomllib
from pathlib import Path

from playwright.sync_api import expect
from service import band

DEFAULTS = tomllib.loads((Path(__file__).parents[2] / "config/default.toml").read_text())["search"]

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


FILLED = """() => Object.fromEntries([...document.querySelectorAll("#submit [data-member], #op, #matrix")]
    .filter(field => !field.closest("[hidden]"))
    .map(field => [field.dataset.member ?? field.id, field.type === "checkbox" ? field.checked : field.value]))"""


def test_a_predicted_plan_is_measured_as_it_was_asked_for(visit, api):
    digest = api.upload(band(310), "never measured")
    asked = "op=spmm&n=5&layout=col&device=cpu"
    # Kept, so that it has a page.
    found = api.request("POST", f"/v1/plans?matrix={digest}&{asked}")
    assert found["match"]["grade"] == "predicted", found
    page = visit(f"/plans/{found['plan']['id']}")
    page.click("#measure")
    expect(page.locator("#matrix")).to_have_value(digest)
    filled = page.evaluate(FILLED)
    wanted = {"matrix": digest, "op": "spmm", "problem.n": "5", "problem.dtype": "f32", "problem.layout": "col", "device": "cpu"}
    assert wanted.items() <= filled.items(), filled
    assert not filled["problem.accumulate"] and not filled["problem.tf32"]
    page.click("#submit-go")
    page.wait_for_url("**/jobs/*")
    job = api.ended(page.url.rsplit("/", 1)[1])
    assert (job["matrix"], job["problem"]) == (digest, found["plan"]["problem"]), job


def test_an_operation_shows_its_own_fields_and_sends_them(visit, api):
    page = visit("/jobs")
    page.evaluate("document.getElementById('submit-card').open = true")
    field = lambda name: page.locator(f'[data-member="problem.{name}"]')
    for op, own, other in [("sptrsv", ["rhs", "diagonal", "transpose"], ["n", "layout", "tf32", "accumulate"]),
                           ("spmm", ["n", "layout", "tf32", "accumulate", "transpose"], ["rhs", "diagonal"])]:
        page.select_option("#op", op)
        for name in own:
            expect(field(name)).to_be_visible()
        for name in other:
            expect(field(name)).to_be_hidden()
    expect(field("dtype")).to_be_visible()
    page.select_option("#op", "sptrsv")
    field("transpose").check()
    page.fill("#matrix", api.upload(band(90), "transposed"))
    page.select_option("#device", "cpu")
    page.click("#submit-go")
    page.wait_for_url("**/jobs/*")
    job = api.ended(page.url.rsplit("/", 1)[1])
    assert (job["problem"]["op"], job["problem"]["transpose"]) == ("sptrsv", True), job


def test_a_link_fills_in_what_can_be_chosen_and_nothing_else(visit):
    solve = "problem.op=sptrsv&problem.rhs=2&problem.dtype=f64&problem.triangle=upper&problem.diagonal=unit&problem.transpose=true"
    filled = visit(f"/#submit=&{solve}&problem.n=7").evaluate(FILLED)
    wanted = {"op": "sptrsv", "problem.rhs": "2", "problem.dtype": "f64", "problem.triangle": "upper", "problem.diagonal": "unit"}
    assert {**wanted, "problem.transpose": True}.items() <= filled.items(), filled
    plain = visit("/#submit=").evaluate(FILLED)
    odd = "problem.op=%3Cimg%20src=x%3E&problem.n=1e9&problem.dtype=f8&problem.layout=&device=%22%3E&problem.tf32=yes"
    # What is folded away would not be seen before it is sent.
    folded = "search.seconds=9&search.strategy=exhaustive&search.top_k=9&search.trials=9&expected_calls=9"
    page = visit(f"/#submit={'<b>' * 9}&{odd}&{folded}")
    assert page.evaluate(FILLED) == plain
    assert page.evaluate("document.getElementById('search-options').open") is False


def test_a_device_that_a_link_names_and_nobody_knows_is_told_of(visit):
    page = visit("/#submit=&device=cuda:%3Cb%3E7")
    told = page.locator("#submit-message")
    expect(told).to_contain_text("cuda:<b>7")
    expect(told).to_have_class("bad")
    expect(told).to_have_attribute("role", "alert")
    expect(page.locator("#device")).to_have_value("auto")
    for known in ["/#submit=", "/#submit=&device=cpu", "/#submit=&device=auto"]:
        expect(visit(known).locator("#submit-message")).to_be_empty()


def test_what_the_device_cannot_do_is_not_offered_and_what_was_chosen_comes_back(visit):
    page = visit("/jobs")
    page.evaluate("document.getElementById('submit-card').open = true")
    dtype = page.locator('[data-member="problem.dtype"]')
    offered = lambda: dtype.evaluate("field => [...field.options].filter(o => !o.disabled).map(o => o.value)")
    # The server's only device is a CPU, so `auto` is one too.
    assert offered() == ["f32", "f64"]
    told = page.locator("#submit-limits")
    expect(told).to_contain_text("a CPU device multiplies in f32 and f64")
    tf32 = page.locator('[data-member="problem.tf32"]')
    tf32.check()
    dtype.select_option("f64")
    expect(tf32).to_be_disabled()
    expect(told).to_contain_text("tf32")
    # Nothing that was ticked is lost.
    dtype.select_option("f32")
    expect(tf32).to_be_enabled()
    expect(tf32).to_be_checked()
    # On a GPU all types are offered; back on the CPU the choice gives way, and comes back with the GPU.
    page.evaluate("document.querySelector('#device option').dataset.kind = 'cuda'; document.getElementById('device').dispatchEvent(new Event('change', { bubbles: true }))")
    dtype.select_option("f16")
    page.evaluate("document.querySelector('#device option').dataset.kind = 'cpu'; document.getElementById('device').dispatchEvent(new Event('change', { bubbles: true }))")
    expect(dtype).to_have_value("f32")
    page.evaluate("document.querySelector('#device option').dataset.kind = 'cuda'; document.getElementById('device').dispatchEvent(new Event('change', { bubbles: true }))")
    expect(dtype).to_have_value("f16")


def test_a_refusal_marks_the_field_that_it_is_about(visit, api):
    page = visit("/jobs")
    page.watch.allow("42[0-9]")
    page.evaluate("document.getElementById('submit-card').open = true")
    page.fill("#matrix", api.upload(band(91), "refused as f16"))
    # As a page that was loaded before the device was gone.
    page.evaluate("for (const option of document.querySelectorAll('#device option')) option.dataset.kind = ''")
    page.select_option("#device", "cpu")
    page.locator('[data-member="problem.dtype"]').select_option("f16")
    page.click("#submit-go")
    expect(page.locator("#dtype")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#op")).not_to_have_attribute("aria-invalid", "true")


def test_a_matrix_is_found_by_its_name(visit, api):
    digests = [api.upload(band(92 + more), f"named bridge {more}") for more in range(2)]
    page = visit("/jobs")
    page.evaluate("document.getElementById('submit-card').open = true")
    page.select_option("#device", "cpu")
    page.fill("#matrix", "viaduct of nowhere")
    page.click("#submit-go")
    # At the box that it was written into, not at the one for files.
    expect(page.locator("#matrix-error")).to_contain_text("No stored matrix")
    expect(page.locator("#matrix")).to_be_focused()
    expect(page.locator("#drop-error")).to_have_count(0)
    page.fill("#matrix", "named bridge")
    page.click("#submit-go")
    expect(page.locator("#matrix-error")).to_contain_text("named bridge 1")
    page.fill("#matrix", "Named Bridge 0")
    page.click("#submit-go")
    page.wait_for_url("**/jobs/*")
    assert api.ended(page.url.rsplit("/", 1)[1])["matrix"] == digests[0]
    page.fill("#find", "bridge 1")
    page.press("#find", "Enter")
    page.wait_for_url(f"**/matrices/{digests[1]}")


def test_what_is_left_empty_is_said(visit, board):
    page = visit("/jobs")
    if not page.locator("#submit-card").get_attribute("open"):
        page.locator("#submit-card > summary").click()
    page.locator("#search-options > summary").click()
    placeholder = lambda id: page.locator(id).get_attribute("placeholder")
    gpu = DEFAULTS["gpu_seconds"]
    seconds = f"{DEFAULTS['seconds']:g}, on a GPU {gpu:g} to {1.8 * gpu:g} (default)"
    assert [placeholder(id) for id in ("#seconds", "#top-k", "#trials")] == [seconds, "16 (default)", "512 (default)"]
    expect(page.locator("#budgets")).to_contain_text("from loading to the finals")
    assert page.locator("#strategy option").evaluate_all("all => all.map(one => one.value)") == [
        "", "ranked", "exhaustive", "predicted", "halving", "sampled", "full"]
    page.locator("#op").select_option("sptrsv")
    assert placeholder("#trials") == "64 (default)"
    expect(page.locator("#top-k")).to_be_hidden()
    page.locator("#strategy").select_option("full")
    assert placeholder("#trials") == "600 (default)"
    expect(page.get_by_label("Measure afterwards")).to_be_hidden()
    page.locator("#strategy").select_option("predicted")
    expect(page.get_by_label("Measure afterwards")).to_be_visible()


def test_a_plan_is_predicted_without_measuring(visit, board):
    page = visit(f"/#submit={board.other}")
    page.locator("#search-options > summary").click()
    page.locator("#strategy").select_option("predicted")
    page.locator("#n").fill("24")
    page.locator("#submit-go").click()
    page.wait_for_url(re.compile("/jobs/"))
    expect(page.locator("#job")).to_have_attribute("data-state", "succeeded")
    expect(page.locator("#estimate")).to_have_text("The model chose; nothing was measured.")
