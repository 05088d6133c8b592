"""Options of the tests of the documents."""

import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def pytest_addoption(parser):
    parser.addoption("--program", default=str(ROOT / "target/debug/sparsetune"), help="the built program")


@pytest.fixture(scope="session")
def program(request):
    path = pathlib.Path(request.config.getoption("--program")).resolve()
    assert path.is_file(), f"{path} is not there: cargo build makes it"
    return str(path)
