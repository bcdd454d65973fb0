"""Contenders in processes of their own."""

import subprocess

import pytest
import torch

from heedful.bench import accuracy
from heedful.bench.peers import PEERS
from heedful.bench.worker import Worker, WorkerError
from heedful.bench.workload import AttentionWorkload, make_inputs
from heedful.kernels.native import library

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


@pytest.mark.skipif("avx2" not in library.isas(), reason="the native library has no avx2 here")
def test_an_instruction_set_limits_pytorch_and_its_libraries_too(monkeypatch):
    environments = []
    popen = subprocess.Popen

    def start(*args, env, **options):
        environments.append(env)
        return popen(*args, env=env, **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    with Worker("sdpa", WORKLOAD, "avx2") as worker:
        worker.results()
    assert environments[0]["ATEN_CPU_CAPABILITY"] == "avx2"
    assert environments[0]["ONEDNN_MAX_CPU_ISA"] == "avx2"
    assert environments[0]["MKL_ENABLE_INSTRUCTIONS"] == "AVX2"
