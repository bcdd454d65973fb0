"""A short timing of a small attention: the tests check everything but speed."""

import pytest

from heedful.tour import speed


@pytest.fixture(autouse=True)
def short_timing(monkeypatch):
    monkeypatch.setattr(speed, "SECONDS", 0.0)
    monkeypatch.setattr(speed, "TOKENS", 32)
