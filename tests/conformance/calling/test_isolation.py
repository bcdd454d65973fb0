"""A check leaves global settings as they were, and ends what would run for ever."""

from __future__ import annotations

import os
import random
import time
import warnings
from pathlib import Path

import numpy
import pytest
import torch

from heedful.conformance.calling.isolation import undisturbed, within
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


def test_a_target_leaves_no_setting_of_torch_and_no_working_directory_behind(tmp_path):
    def settings():
        autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        cached = torch.is_autocast_cache_enabled()
        return torch.zeros(()).device, autocast, cached, str(torch.full((1,), 0.123)), Path.cwd()

    before = settings()
    with undisturbed():
        torch.set_default_device("meta")
        torch.autocast("cpu", torch.float16).__enter__()
        torch.set_autocast_cache_enabled(False)
        torch.set_printoptions(precision=1, sci_mode=True)
        os.chdir(tmp_path)
    assert settings() == before


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
