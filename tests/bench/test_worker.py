"""A contender in a process of its own."""

import pytest
import torch

from heedful.bench import checking
from heedful.bench.peers import PEERS
from heedful.bench.settings import Setting, make
from heedful.bench.worker import Worker, WorkerError

SETTING = Setting(1, 1, 2048, 16)


def test_it_computes_the_same_there_and_its_memory_is_seen():
    inputs = make(SETTING)
    (here,) = checking.results_of(PEERS["textbook"].prepare(inputs))
    with Worker("textbook", SETTING) as worker:
        added = worker.memory()
        (there,) = worker.results()
        assert worker.seconds(2) > 0
    torch.testing.assert_close(there, here)
    scores = 4 * SETTING.Tq**2
    assert scores <= added <= 6 * scores


def test_why_it_ended_is_said():
    with pytest.raises(WorkerError, match=r"no such peer.*KeyError"):
        Worker("no such peer", SETTING)
