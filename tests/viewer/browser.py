"""A headless Chromium for the tests of pages, and what they ask of every page."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

import pytest

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
CHROMIUM = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
HOSTILE = {
    "<script>alert(1)</script>": "<script>alert(1)</script…",
    '"><img src=http://x.invalid onerror=alert(2)>': '"><img src=http://x.inva…',
    "</script><svg onload=alert(3)>": "</script><svg onload=ale…",
    "<!--<script>": "<!--<script>",
    "&lt;b&gt;${1}": "&lt;b&gt;${1}",
    "\x00\x1b[2J\x7f\n": "␀␛[2J␡↵",
    "\u202eright to left\u2066": "\ufffdright to left\ufffd",
    "שלום עולם": "שלום עולם",
    "👩\u200d👩\u200d👧": "👩\u200d👩\u200d👧",
    "\ud800": "\ufffd",
    "": "∅",
    " ": "␣",
    "x" * 1_000_000: "x" * 24 + "…",
}
"""Tokens that no page may obey, and what it shows of each."""


@contextmanager
def chromium() -> Iterator:
    """Start Chromium, or skip and say what installs it; its event loop must not outlive the module."""
    if CHROMIUM is None:
        pytest.skip("no Chromium: apt-get install --no-install-recommends chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install 'heedful[test]'")
    with warnings.catch_warnings(), playwright.sync_playwright() as api:
        warnings.simplefilter("ignore")
        browser = api.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """An opened page, and what it complained about and asked for.

    Args:
        browser: The browser.
        address: The address of the page.
        width: The width of the window.
        dark: Whether the reader prefers dark pages.
        answer: What answers every request of the page, instead of the network.

    Attributes:
        page: The page.
        complaints: Errors and warnings of its console, uncaught exceptions and dialogs.
        answers: The addresses that answered, and the status of each.
        requests: The addresses that it asked for, besides its own.
    """

    def __init__(
        self,
        browser,
        address: str,
        *,
        width: int = 1400,
        dark: bool = False,
        answer: Callable | None = None,
    ) -> None:
        scheme = "dark" if dark else "light"
        self._context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        self.page = self._context.new_page()
        self.complaints: list[str] = []
        self.answers: list[tuple[str, int]] = []
        self.requests: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._dismiss)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("response", lambda it: self.answers.append((it.url, it.status)))
        if answer is not None:
            self.page.route("**/*", answer)
        self.page.goto(address)
        self.requests = [url for url in self.requests if url != address]

    def _hear(self, message) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _dismiss(self, dialog) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def close(self, picture: Path) -> None:
        """Draw what the page shows to a file, and close it."""
        self.page.screenshot(path=picture, type="jpeg", quality=70)
        self._context.close()


def violations(page) -> list[tuple[str, list[str]]]:
    """Return the rules of accessibility that axe finds broken, each with some elements that break it."""
    source = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
    page.evaluate(source)
    found = page.evaluate(
        "axe.run({ resultTypes: ['violations'] }).then(result => result.violations)"
    )
    return [(it["id"], [node["html"][:200] for node in it["nodes"][:3]]) for it in found]


def width_of(page) -> int:
    """Return how wide the page is, whatever the width of its window."""
    return page.evaluate("document.documentElement.scrollWidth")


def wait_until(page, condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; the policy of a page forbids the script of `wait_for_function`."""
    for _ in range(100):
        if condition():
            return
        page.wait_for_timeout(50)
    raise TimeoutError


def number(text: str) -> float:
    """Return the number that a page writes with a minus sign."""
    return float(text.replace("−", "-"))
