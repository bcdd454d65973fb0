"""The browser that the tests of this folder share, and pictures of what each of them saw last."""

from __future__ import annotations

import re

import pytest

from viewer.browser import SCREENSHOTS, Opened, chromium


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture
def open_address(browser, request):
    """Return a function that opens an address in a tab, which is drawn to a file when the test ends."""
    tabs = []

    def open_it(address: str, **options) -> Opened:
        tabs.append(Opened(browser, address, **options))
        return tabs[-1]

    yield open_it
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for i, tab in enumerate(tabs):
        name = re.sub(r"[^\w.=-]+", "-", f"{request.path.stem}.{request.node.name}.{i}")
        tab.close(SCREENSHOTS / f"{name}.jpg")


@pytest.fixture
def opened(open_address, files):
    """Return a function that opens one of the module's `files` by its name."""

    def open_page(name: str, **options) -> Opened:
        return open_address(files[name].as_uri(), **options)

    return open_page
