"""A tour that times a small attention only once: the tests look at everything else."""

import pytest

from heedful.tour import timing


@pytest.fixture(autouse=True)
def short_timing(monkeypatch):
    monkeypatch.setattr(timing, "SECONDS", 0.0)
    monkeypatch.setattr(timing, "TOKENS", 32)
