"""A browser, a server, and a board with something of everything on it."""

import os
import types

import pytest
from playwright.sync_api import expect, sync_playwright
from service import Api, PATIENCE_S, Process, ROOT, band
from watch import Watch

# A name as bad as names get; every page shows it as text.
HOSTILE = '<img src=x onerror=alert(1)>"\'&{{7*7}}'
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]
expect.set_options(timeout=PATIENCE_S * 1000)


def pytest_addoption(parser):
    parser.addoption("--url", help="a running server on a temporary store, with the CPU as a device; else one is started")


@pytest.fixture(scope="session")
def url(request, tmp_path_factory):
    given = request.config.getoption("--url")
    if given:
        yield given.rstrip("/")
        return
    process = Process(tmp_path_factory.mktemp("server"))
    yield process.url
    process.stop()


@pytest.fixture(scope="session")
def api(url):
    return Api(url)


@pytest.fixture(scope="session")
def chromium():
    with sync_playwright() as playwright:
        program = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, url):
    """Opens pages in a browser that knows nothing yet; all that they did wrong is told at the end."""
    opened = []

    def open_page(path, width=1440, site=None, context=None):
        context = context or chromium.new_context(viewport={"width": width, "height": 844})
        context.set_default_timeout(PATIENCE_S * 1000)
        page = context.new_page()
        page.watch = Watch(page, site or url)
        opened.append(page)
        page.goto((site or url) + path)
        return page

    yield open_page
    for page in opened:
        page.watch.check()
    for page in opened:
        page.context.close()


@pytest.fixture
def process(tmp_path):
    """Starts a server of the test's own, with these settings."""
    started = []

    def start(**settings):
        started.append(Process(tmp_path, **settings))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def delaunay():
    return ROOT / "data/delaunay_n15.mtx.gz"


@pytest.fixture(scope="session")
def board(api):
    """Two small matrices, one with a hostile name, and a finished job of either kind on it."""
    digest = api.upload(band(300), HOSTILE)
    other = api.upload(band(301), "a band")
    jobs = [
        api.submit(digest, {"op": "spmm", "n": 8}, search={"strategy": "exhaustive"}),
        api.submit(digest, {"op": "sptrsv", "dtype": "f64", "rhs": 1, "triangle": "lower", "diagonal": "non-unit"}),
        api.submit(other, {"op": "spmm", "n": 8}),
    ]
    told = [api.ended(job) for job in jobs]
    assert [job["state"] for job in told] == ["succeeded"] * 3, told
    return types.SimpleNamespace(digest=digest, other=other, job=jobs[0], solve=jobs[1], plan=told[0]["plan"], solve_plan=told[1]["plan"])


@pytest.fixture
def learned(process):
    """A server that has learned two models from thirty small matrices, the second of them in use."""
    # The model is a few trees, which split nothing where they are shown less.
    server = process(SPARSETUNE_LEARNING__MIN_GROUPS="10", SPARSETUNE_LEARNING__MIN_TRIALS="80")
    api = Api(server.url)
    digests = [api.upload(band(40 + more), f"band {more}") for more in range(30)]
    jobs = [api.submit(digest, {"op": "spmm", "n": 4}, search={"strategy": "exhaustive"}) for digest in digests]
    assert [api.ended(job)["state"] for job in jobs] == ["succeeded"] * 30
    first, second = [api.trained("spmm", seed) for seed in (1, 2)]
    return types.SimpleNamespace(api=api, first=first, second=second)


@pytest.fixture
def long_job(api, delaunay):
    """A job that runs for a minute unless it is cancelled, as it is in the end."""
    digest = api.upload(delaunay.read_bytes(), "delaunay_n15")
    job = api.submit(digest, {"op": "spmm", "n": 32}, search={"strategy": "exhaustive", "seconds": 60})
    yield job
    api.cancel(job)
    api.ended(job)
