"""A check leaves global settings as they were, and ends what would run for ever."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from heedful.conformance.calling.isolation import (
    restored,
    undisturbed,
    uninitialised_as_nan,
    within,
)
from heedful.conformance.calling.subject import find_subject
from heedful.textbook import multi_head


def test_global_state_is_restored(capsys):
    torch.manual_seed(3)
    settings = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy()
    others = torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()
    with undisturbed():
        torch.manual_seed(0)
        random.random()
        numpy.random.rand()
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(1 + others[1])
        torch.set_grad_enabled(False)
        torch.use_deterministic_algorithms(True)
        print("from the target")
        warnings.warn("from the target, too", stacklevel=1)
    assert torch.equal(torch.get_rng_state(), settings[0])
    assert random.getstate() == settings[1]
    assert (numpy.random.get_state()[1] == settings[2]).all()
    assert others == (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled())
    assert not torch.are_deterministic_algorithms_enabled()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "from the target\n"


CHANGES = {
    "signal handler": (
        lambda: signal.getsignal(signal.SIGTERM),
        lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    ),
    "environment": (lambda: dict(os.environ), lambda: os.environ.update(HEEDFUL_TEST="1", HOME="")),
    "environment, emptied": (lambda: dict(os.environ), os.environ.clear),
    "working folder": (Path.cwd, lambda: os.chdir("/")),
    "import path": (lambda: list(sys.path), lambda: sys.path.insert(0, "/nowhere")),
    "import path, replaced": (lambda: (id(sys.path), *sys.path), lambda: setattr(sys, "path", [])),
    "arguments": (lambda: list(sys.argv), lambda: sys.argv.append("--more")),
    "warnings": (lambda: list(warnings.filters), warnings.resetwarnings),
    "stdout": (lambda: sys.stdout, lambda: setattr(sys, "stdout", None)),
    "stderr": (lambda: sys.stderr, lambda: setattr(sys, "stderr", None)),
    "level of logging": (lambda: logging.root.level, lambda: logging.root.setLevel(5)),
    "logging": (lambda: logging.root.manager.disable, lambda: logging.disable(50)),
    "handlers": (
        lambda: list(logging.root.handlers),
        lambda: logging.root.addHandler(logging.NullHandler()),
    ),
    "recursion": (sys.getrecursionlimit, lambda: sys.setrecursionlimit(5000)),
    "random": (random.getstate, lambda: random.seed(1)),
    "numpy": (lambda: str(numpy.random.get_state()), lambda: numpy.random.seed(1)),
    "numpy's printing": (numpy.get_printoptions, lambda: numpy.set_printoptions(precision=1)),
    "numpy's errors": (numpy.geterr, lambda: numpy.seterr(all="raise")),
    "torch's numbers": (lambda: torch.get_rng_state().tolist(), lambda: torch.manual_seed(1)),
    "dtype": (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float64)),
    "device": (lambda: torch.zeros(()).device, lambda: torch.set_default_device("meta")),
    "threads": (torch.get_num_threads, lambda: torch.set_num_threads(torch.get_num_threads() + 1)),
    "gradients": (torch.is_grad_enabled, lambda: torch.set_grad_enabled(False)),
    "anomalies": (torch.is_anomaly_enabled, lambda: torch.autograd.set_detect_anomaly(True)),
    "precision": (
        torch.get_float32_matmul_precision,
        lambda: torch.set_float32_matmul_precision("medium"),
    ),
    "printing": (
        lambda: str(torch.full((1,), 0.123)),
        lambda: torch.set_printoptions(precision=1, sci_mode=True),
    ),
    "determinism": (
        torch.get_deterministic_debug_mode,
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    ),
    "autocast": (
        lambda: (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        lambda: torch.autocast("cpu", torch.float16).__enter__(),
    ),
    "autocast's cache": (
        torch.is_autocast_cache_enabled,
        lambda: torch.set_autocast_cache_enabled(False),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_target_leaves_no_setting_behind(name):
    get, change = CHANGES[name]
    before = get()
    with undisturbed():
        change()
        assert name == "warnings" or get() != before
    assert get() == before


def test_discovery_does_not_advance_the_users_generator():
    before = torch.get_rng_state()
    with undisturbed():
        find_subject(multi_head.MultiHeadAttention)
    assert torch.equal(torch.get_rng_state(), before)


def endless():
    while True:
        time.sleep(0.001)


def test_a_time_limit_ends_an_endless_loop():
    started = time.perf_counter()
    with pytest.raises(TimeoutError), within(0.2):
        endless()
    assert time.perf_counter() - started < 2
    with within(0.2):
        pass
    time.sleep(0.3)  # a block that ended in time is not interrupted later


def test_a_block_without_time_is_not_entered():
    entered = []
    with pytest.raises(TimeoutError), within(0.0):
        entered.append(True)
    assert not entered


def test_an_outer_limit_ends_what_goes_on_after_an_inner_one():
    def endless_twice():
        with suppress(TimeoutError), within(0.2):
            endless()
        endless()

    with pytest.raises(TimeoutError), within(0.2):
        endless_twice()


def busy_then_endless():
    with suppress(TimeoutError), within(0.05):
        time.sleep(1)  # no exception can interrupt it, and both limits pass
    endless()


def mistaken():
    """Take the exception of the limit around it for that of its own, which is far away."""
    with suppress(TimeoutError), within(9):
        endless()
    endless()


@pytest.mark.parametrize("goes_on", [busy_then_endless, mistaken])
def test_an_outer_limit_is_not_lost_to_an_inner_one(goes_on):
    started = time.perf_counter()
    with pytest.raises(TimeoutError), within(0.1):
        goes_on()
    assert time.perf_counter() - started < 5


def test_no_thread_is_left_behind():
    threads = threading.active_count()
    for _ in range(3):
        with within(9):
            assert threading.active_count() <= threads + 1
    time.sleep(0.3)
    assert threading.active_count() <= threads


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_has_limits_of_its_own():
    with within(9):
        process = multiprocessing.get_context("fork").Process(target=ends_in_time)
        process.start()
        process.join(10)
        process.kill()
    assert process.exitcode == 0


def ends_in_time():
    with suppress(TimeoutError), within(0.1):
        endless()


class SlowToLeave(TorchFunctionMode):
    """A mode that is interrupted while it is left."""

    def __exit__(self, *exception):
        time.sleep(0.5)
        time.sleep(0.0)
        return super().__exit__(*exception)


def leave_slowly():
    torch.set_grad_enabled(False)
    with SlowToLeave():
        pass


def test_an_interrupted_block_leaves_no_mode_behind():
    depth = torch._C._len_torch_function_stack()
    with pytest.raises(TimeoutError), within(0.1):
        leave_slowly()
    assert torch._C._len_torch_function_stack() == depth
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("setting", [(False, False), (True, False), (True, True)])
def test_memory_that_is_not_initialised_is_nan_within_a_run_alone(setting):
    enabled, warns_only = setting
    torch.use_deterministic_algorithms(enabled, warn_only=warns_only)
    try:
        with uninitialised_as_nan():
            assert torch.empty(9).isnan().all()
        assert torch.are_deterministic_algorithms_enabled() == enabled
        assert torch.is_deterministic_algorithms_warn_only_enabled() == warns_only
    finally:
        torch.use_deterministic_algorithms(False)


def test_runs_within_a_run_leave_no_trace_in_what_they_write_to():
    module = nn.Module()
    module.register_buffer("table", torch.ones(3))
    with restored(module):
        for _ in range(3):
            with restored(module):
                module.table.mul_(2)
    assert torch.equal(module.table, torch.ones(3))
