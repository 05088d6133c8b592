"""Options of the tests of what the project is deployed by: images, compose files, manifests, and packages."""

import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def pytest_addoption(parser):
    parser.addoption("--program", default=str(ROOT / "target/debug/sparsetune"), help="the built program")


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def program(request):
    path = pathlib.Path(request.config.getoption("--program")).resolve()
    assert path.is_file(), f"{path} is not there: cargo build makes it"
    return path
