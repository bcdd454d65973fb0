"""Contenders in processes of their own."""

import pytest
import torch

from heedful.bench import accuracy
from heedful.bench.peers import PEERS
from heedful.bench.worker import Worker, WorkerError
from heedful.bench.workload import AttentionWorkload, make_inputs

WORKLOAD = AttentionWorkload(1, 1, 2048, 16)


def test_a_worker_computes_the_same_and_measures_its_memory():
    inputs = make_inputs(WORKLOAD)
    (here,) = accuracy.results_of(PEERS["textbook"].prepare(inputs))
    with Worker("textbook", WORKLOAD) as worker:
        added = worker.memory()
        (there,) = worker.results()
        assert worker.seconds(2) > 0
    torch.testing.assert_close(there, here)
    scores = 4 * WORKLOAD.Tq**2
    assert scores <= added <= 6 * scores


def test_a_worker_that_ends_reports_its_last_line():
    with pytest.raises(WorkerError, match=r"no such peer.*KeyError"):
        Worker("no such peer", WORKLOAD)
