"""The processes of targets are forked from one that has imported torch: each starts in a tenth of the time."""

import pytest

from conformance.preloaded import CONTEXT, run_preloaded
from heedful.conformance import own_process


@pytest.fixture(autouse=True)
def preloaded(monkeypatch):
    if CONTEXT is not None:
        monkeypatch.setattr(own_process, "_run", run_preloaded)
