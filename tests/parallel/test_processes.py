"""The same in real processes with gloo, and how ranks fail there."""

import json

import pytest
import torch
from parallel_cases import assert_equal
from processes import SEED, TIMEOUT, cases, compute, fail, run

from heedful import attention
from heedful.parallel import ring_attention, ulysses_attention


def in_one_process(call):
    """Return output, log-sum-exp and gradients of `attention`, with the seed of the first rank."""
    torch.manual_seed(SEED)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in call.tensors.items()}
    result = attention(mask=call.mask, return_lse=True, **leaves, **call.options)
    loss = call.loss(result, call.grad_output, call.grad_lse)
    gradients = torch.autograd.grad(loss, tuple(leaves.values()))
    named = {f"gradient of {name}": g for name, g in zip(leaves, gradients, strict=True)}
    return {"output": result.output, "lse": result.lse} | named


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "ranks", [pytest.param(n, marks=SLOW if n > 2 else ()) for n in (1, 2, 3, 4, 8)]
)
def test_results_and_gradients_are_those_of_one_process(ranks, tmp_path):
    run(compute, ranks, tmp_path)
    for rank in range(ranks):
        found = torch.load(tmp_path / f"{rank}.pt")
        for result, (_, call, _) in zip(found, cases(ranks), strict=True):
            assert_equal(result, in_one_process(call), atol=1e-10)


@pytest.mark.parametrize(
    ("how", "cause", "survivors"),
    [
        ("dies", "it has ended", {0, 2}),
        ("dies while one waits and one has not called", "it has ended", {0, 2}),
        ("hangs", "it did not answer within the group's timeout", {0, 2}),
        pytest.param("dies between the passes", "it has ended", {0, 2}, marks=SLOW),
        pytest.param("dtype", "query: expected float32 (1, 3, tokens, 8)", {0, 1, 2}, marks=SLOW),
        pytest.param("shape", "key: expected float32 (1, 3, tokens, 8)", {0, 1, 2}, marks=SLOW),
        pytest.param("mask", "mask: expected", {0, 1, 2}, marks=SLOW),
        pytest.param("fails", "key: expected the 4 tokens of this rank", {0, 2}, marks=SLOW),
    ],
)
@pytest.mark.parametrize(
    "attend", [ring_attention, pytest.param(ulysses_attention, marks=SLOW)], ids=["ring", "ulysses"]
)
def test_a_rank_that_fails_is_named_by_all_others_in_time(how, cause, survivors, attend, tmp_path):
    run(fail, 3, tmp_path, how, attend)
    for rank in survivors:
        report = json.loads((tmp_path / f"{rank}.json").read_text())
        assert report["rank"] == 1, report
        assert cause in report["error"]
        assert report["seconds"] < TIMEOUT + 2


@SLOW
@pytest.mark.parametrize(
    ("how", "cause"),
    [("dies in a round", "it has ended"), ("hangs in a round", "it did not answer within")],
)
def test_no_rank_hangs_if_one_fails_between_two_rounds(how, cause, tmp_path):
    run(fail, 3, tmp_path, how)
    reports = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 2)]
    assert any(report["rank"] == 1 and cause in report["error"] for report in reports)
    for report in reports:
        assert "rank" in report["error"]
        assert report["seconds"] < 2 * TIMEOUT + 2
