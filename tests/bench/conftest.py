"""A bench whose probes are over soon: the tests look at everything but speed."""

import pytest

from heedful.bench import peaks


@pytest.fixture(autouse=True)
def short_probes(monkeypatch):
    monkeypatch.setattr(peaks, "PROBE_SECONDS", 0.001)
    monkeypatch.setattr(peaks, "PROBES_TAKEN", 1)
