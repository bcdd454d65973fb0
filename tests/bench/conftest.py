"""Short probes of the machine's peaks: the tests check everything but speed."""

import pytest

from heedful.bench import peaks


@pytest.fixture(autouse=True)
def short_probes(monkeypatch):
    monkeypatch.setattr(peaks, "PROBE_SECONDS", 0.001)
    monkeypatch.setattr(peaks, "PROBE_COUNT", 1)
