"""The state that every test starts from: a known random state, one thread per worker, no deadlines."""

import os
import signal

import hypothesis
import pytest
import torch

torch.manual_seed(0)  # parametrised tensors are drawn while tests are collected

# A shell without job control ignores SIGINT in what it starts in the background, and so would all processes of tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hypothesis draws the same examples everywhere; `HYPOTHESIS_PROFILE=explore` draws new ones.
hypothesis.settings.register_profile(
    "default", deadline=None, derandomize=True, max_examples=100, print_blob=True
)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def known_state():
    """Seed torch, and restore the global settings that the test changed."""
    threads = torch.get_num_threads()
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def no_amx(monkeypatch):
    """Prefer the same kernels on every machine: PyTorch's may come first for bfloat16 if it has AMX tiles."""
    monkeypatch.setattr("heedful.dispatch.AMX", False)


@pytest.fixture
def ten_seconds():
    """Fail if the test takes longer."""

    def too_long(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
