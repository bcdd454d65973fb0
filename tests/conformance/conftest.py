"""The processes of targets are forked from one that has imported torch: each starts in a tenth of the time."""

import pytest

from conformance.preloaded import CONTEXT, run_preloaded
from heedful.conformance import own_process

RUN = own_process._run


@pytest.fixture(autouse=True)
def preloaded(monkeypatch):
    if CONTEXT is not None:
        monkeypatch.setattr(own_process, "_run", run_preloaded)


@pytest.fixture
def as_users_start_it(monkeypatch, preloaded):
    """Start the process of the target as a program, with its own command line, limits and end."""
    monkeypatch.setattr(own_process, "_run", RUN)
