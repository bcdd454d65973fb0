"""A headless Chromium for the tests of pages."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CHROMIUM = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)


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

    Attributes:
        page: The page.
        complaints: Errors and warnings of its console, uncaught exceptions and dialogs.
        requests: The addresses that it asked for, besides its own.
    """

    def __init__(self, browser, file: Path, *, width: int = 1400, dark: bool = False) -> None:
        scheme = "dark" if dark else "light"
        self._context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        self.page = self._context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._dismiss)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        self.requests = [url for url in self.requests if url != file.as_uri()]

    def _hear(self, message) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _dismiss(self, dialog) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_) -> None:
        self._context.close()
