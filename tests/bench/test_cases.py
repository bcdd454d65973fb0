"""The table of cases, and the inputs of their workloads."""

import pytest

from heedful.bench.cases import CASES, choose_cases
from heedful.bench.peers import PEERS, registry
from heedful.bench.workload import DTYPES, AttentionWorkload, make_inputs
from heedful.errors import ArgumentError

BY_NAME = {case.name: case for case in CASES}


def test_names_are_unique_and_end_in_their_dtype():
    assert len(BY_NAME) == len(CASES)
    assert all(case.name.rpartition("-")[2] == case.workload.dtype for case in CASES)
    assert {case.workload.dtype for case in CASES} == set(DTYPES)


def test_a_name_matches_all_cases_that_begin_with_it():
    assert [case.name for case in choose_cases(["padded-bf16"])] == ["padded-bf16"]
    assert [case.name for case in choose_cases(["padded", "peak-fp32"])] == [
        "peak-fp32",
        "padded-fp32",
        "padded-bf16",
    ]
    assert choose_cases([]) == CASES
    with pytest.raises(ArgumentError, match="window"):
        choose_cases(["pad"])


def test_inputs_are_reproducible_and_have_the_shapes_of_the_workload():
    workload = BY_NAME["decode-b8-bf16"].workload.quick()
    first, second = make_inputs(workload), make_inputs(workload)
    assert first.query.equal(second.query)
    assert first.query.shape == (2, 32, 1, 128)
    assert first.key.shape == (2, 8, 128, 128)
    assert first.flops == 4 * 128 * 2 * 32 * 128
    assert first.bytes_read == 2 * first.key.numel() * 2


def test_zentorch_is_refused_for_another_release_of_torch(monkeypatch):
    workload = AttentionWorkload(1, 1, 64, 16)
    versions = {"torch": "2.13.0+cpu", "zentorch": "2.13.0.2"}
    monkeypatch.setattr(registry, "find_spec", lambda name: name)
    monkeypatch.setattr(registry, "version", versions.__getitem__)
    assert PEERS["zentorch"].refusal(workload) is None
    versions["zentorch"] = "2.14.0.1"
    assert PEERS["zentorch"].refusal(workload) == (
        "the installed one is made for torch 2.14: pip install 'zentorch==2.13.*'"
    )
