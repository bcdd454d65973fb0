"""The built site: no dead links, nothing to complain about in a browser, and nothing asked of the network.

`make docs` builds the site and runs these tests.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from viewer.browser import SCREENSHOTS, Opened, chromium, width_of

SITE = Path(__file__).parents[2] / "build" / "docs"
PHONE = 390
pytestmark = pytest.mark.site


def files() -> list[Path]:
    """Return all pages."""
    return sorted(path for path in SITE.rglob("*.html") if "_static" not in path.parts)


class Links(HTMLParser):
    """The places and the links of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.places: set[str] = {""}
        self.links: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.places |= {values[name] for name in ("id", "name") if values.get(name)}
        self.links += [values[name] for name in ("href", "src") if values.get(name)]


def test_no_link_is_dead():
    parsed = {path: Links(path) for path in files()}
    dead = []
    for path, page in parsed.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists() or (
                target in parsed and unquote(parts.fragment) not in parsed[target].places
            ):
                dead.append(f"{path.relative_to(SITE)}: {link}")
    assert len(parsed) > 80
    assert not dead


def test_every_finding_has_a_page():
    from heedful.conformance.reporting.catalogue import CATALOGUE

    assert all((SITE / "findings" / f"{name}.html").exists() for name in CATALOGUE)


@contextmanager
def visited(browser, path: Path, query: str = "", **options) -> Iterator[Opened]:
    """Open a page, and draw what it showed to a file."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    opened = Opened(browser, path.as_uri() + query, **options)
    yield opened
    opened.close(SCREENSHOTS / f"site.{'-'.join(path.relative_to(SITE).parts)}.jpg")


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@dataclass(frozen=True)
class Visit:
    """What a page did in a browser of the width of a phone."""

    name: str
    complaints: list[str]
    requests: list[str]
    width: int


@pytest.fixture(scope="module")
def visits(browser) -> list[Visit]:
    """Open every page from the file system, on a phone, in the dark."""
    found = []
    for path in files():
        with visited(browser, path, width=PHONE, dark=True) as opened:
            width = width_of(opened.page)
            name = str(path.relative_to(SITE))
            found.append(Visit(name, opened.complaints, opened.requests, width))
    return found


def test_a_browser_has_nothing_to_complain_about(visits):
    assert not [(visit.name, visit.complaints) for visit in visits if visit.complaints]


def test_no_page_asks_the_network_for_anything(visits):
    local = ("file:", "data:", "blob:", "about:")
    asked = {url for visit in visits for url in visit.requests if not url.startswith(local)}
    assert not asked


def test_no_page_is_wider_than_a_phone(visits):
    """The pages of `heedful show` are tested by tests/viewer."""
    wide = [it for it in visits if it.width > PHONE and not it.name.startswith("steps/")]
    assert not [(visit.name, visit.width) for visit in wide]


def test_the_site_is_dark_in_the_dark(browser):
    def brightness(dark: bool) -> float:
        with visited(browser, SITE / "index.html", dark=dark) as opened:
            color = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
            return sum(float(it) for it in color.strip("rgba()").split(",")[:3])

    assert brightness(dark=True) < 120 < 600 < brightness(dark=False)


def test_the_search_finds_a_page_without_a_server(browser):
    with visited(browser, SITE / "search.html", "?q=softmax") as opened:
        found = opened.page.wait_for_selector("#search-results li a", timeout=20_000)
        assert found is not None
        opened.page.wait_for_timeout(500)
        hrefs = opened.page.eval_on_selector_all(
            "#search-results li a", "links => links.map(it => it.href)"
        )
        assert any("softmax-wrong-dim" in href for href in hrefs)
        assert not opened.complaints
