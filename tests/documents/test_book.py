"""The site as mdBook builds it: nothing in it leads nowhere."""

import html.parser
import subprocess
from urllib.parse import unquote

import pages
import pytest

MDBOOK = pages.ROOT / "target/tools/bin/mdbook"


class Page(html.parser.HTMLParser):
    """What a page of the site names, and where it leads."""

    def __init__(self, text):
        super().__init__()
        self.names, self.links = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.names.update(found[key] for key in ("id", "name") if key in found)
        self.links.update(found[key] for key in ("href", "src") if found.get(key))


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    assert MDBOOK.is_file(), f"{MDBOOK} is not there: scripts/test installs it"
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run([MDBOOK, "build", pages.ROOT / "docs", "--dest-dir", folder], capture_output=True, text=True)
    assert built.returncode == 0 and "ERROR" not in built.stderr, built.stderr
    # The page of the whole book, for printing, has links of all pages; those for visitors who are lost lead to the site's root.
    return {path.relative_to(folder): Page(path.read_text()) for path in folder.rglob("*.html") if path.name not in ("print.html", "404.html")}, folder


def test_every_page_is_built(site):
    found, folder = site
    for page in pages.BOOK:
        name = page.removeprefix("docs/").removesuffix(".md") + ".html"
        if name != "SUMMARY.html":
            assert (folder / name.replace("README", "index")).is_file(), name


def test_links_of_the_site_lead_somewhere(site):
    found, folder = site
    strange, followed = [], 0
    for path, page in found.items():
        for link in page.links:
            target, _, anchor = unquote(link).partition("#")
            if ":" in target or target.startswith("//"):
                continue
            followed += 1
            file = (folder / path.parent / target).resolve() if target else folder / path
            if not file.exists():
                strange.append(f"{path}: {link}")
            elif anchor and anchor not in found[file.relative_to(folder)].names:
                strange.append(f"{path}: {link}: no such heading")
    assert followed > 200 and not strange, strange


def test_what_is_included_is_there(site):
    found, folder = site
    assert "sparsetune for Python" in (folder / "reference/python.html").read_text()
    assert not [path for path in found if "{{#" in (folder / path).read_text()]
