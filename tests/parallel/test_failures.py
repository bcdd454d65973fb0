"""Ranks that disagree, fail or are missing: every rank raises an error that names the rank and the cause."""

import time
from unittest import mock

import pytest
import torch

from heedful import attention
from heedful.errors import ArgumentError, HeedfulError, KernelError, RankError
from heedful.masks import Causal, Documents, Window
from heedful.parallel import (
    contiguous_order,
    mesh_attention,
    ring,
    ring_attention,
    shard,
    simulate,
    ulysses_attention,
    unshard,
)
from heedful.parallel.axes import ranks_of

ORDER = contiguous_order(12, 3)


def arguments():
    x = torch.zeros(1, 6, 4, 8)
    return {"query": x, "key": x[:, :2], "value": x[:, :2], "mask": Causal(), "order": ORDER}


def errors_of(function, changed, *sizes, timeout=60.0, faulty=1):
    """Return what every rank raises if one of them passes other arguments."""
    errors = {}

    def run(group):
        rank = ranks_of(group).rank
        mine = arguments() | {
            "order": contiguous_order(4 * ranks_of(group).size, ranks_of(group).size)
        }
        if rank == faulty:
            mine |= changed
        tensors = [mine.pop(name) for name in ("query", "key", "value", "mask")]
        try:
            function(*tensors, group=group, **mine)
        except HeedfulError as error:
            errors[rank] = error

    simulate(run, *sizes, timeout=timeout)
    return errors


DIFFERENCES = {
    "key": (
        {"key": torch.zeros(1, 3, 4, 8), "value": torch.zeros(1, 3, 4, 8)},
        "key: expected float32 (1, 2, tokens, 8)",
    ),
    "value": ({"value": torch.zeros(1, 2, 4, 6)}, "value: expected float32 (1, 2, tokens, 8)"),
    "mask": ({"mask": Window(3)}, "mask: expected Causal() with digest"),
    "documents": (
        {"mask": Causal() & Documents([0] * 6 + [1] * 6)},
        "mask: expected Causal() with digest",
    ),
    "scale": ({"scale": 0.3}, "scale, softcap, dropout_p, kernel: expected None, None, 0.0, auto"),
    "dropout": ({"dropout_p": 0.1}, "scale, softcap, dropout_p, kernel"),
    "sinks": ({"sinks": torch.zeros(6)}, "sinks: expected none"),
    "bias": ({"bias": torch.zeros(4, 12)}, "bias: expected none"),
    "gradients": (
        {"query": torch.zeros(1, 6, 4, 8, requires_grad=True)},
        "gradients of query, key, value, bias, sinks: expected (False,",
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
@pytest.mark.parametrize("function", [ring_attention, ulysses_attention])
def test_a_rank_with_other_arguments_is_named_by_all(function, name):
    changed, cause = DIFFERENCES[name]
    errors = errors_of(function, changed, 3)
    assert sorted(errors) == [0, 1, 2]
    for error in errors.values():
        assert isinstance(error, RankError)
        assert error.rank == 1
        assert cause in str(error)
        assert "as on rank 0, 2; received" in str(error)


def test_another_order_is_noticed():
    order = contiguous_order(12, 3)
    other = type(order)((order.places[1], order.places[0], order.places[2]))
    for error in errors_of(ring_attention, {"order": other}, 3).values():
        assert error.rank == 1
        assert "order: expected of 12 tokens with digest" in str(error)


@pytest.mark.parametrize("faulty", [0, 5])
def test_on_a_mesh_ranks_of_other_rows_and_columns_know_too(faulty):
    errors = errors_of(mesh_attention, {"dropout_p": 0.1}, 3, 2, faulty=faulty)
    assert sorted(errors) == list(range(6))
    named = {error.rank for error in errors.values()}
    assert all(isinstance(error, RankError) for error in errors.values())
    assert named <= {faulty, faulty ^ 1}  # of two that differ, it is unknown which is wrong


def test_an_error_of_one_rank_reaches_all():
    errors = errors_of(ring_attention, {"query": torch.zeros(1, 6, 3, 8)}, 3)
    assert isinstance(errors[1], ArgumentError)
    assert str(errors[1]).startswith("query: expected the 4 tokens of this rank")
    for rank in (0, 2):
        assert errors[rank].rank == 1
        assert "query: expected the 4 tokens of this rank" in str(errors[rank])


def test_a_kernel_that_one_rank_lacks_is_named():
    errors = errors_of(ring_attention, {"kernel": "torch_sdpa"}, 3)
    assert isinstance(errors[1], KernelError)
    assert "cannot run this problem" in errors[0].cause


def test_different_functions_do_not_meet():
    errors = {}

    def run(group):
        rank = group.axes[0].rank
        function = ulysses_attention if rank == 2 else ring_attention
        mine = arguments()
        tensors = [mine.pop(name) for name in ("query", "key", "value", "mask")]
        try:
            function(*tensors, group=group, **mine)
        except RankError as error:
            errors[rank] = error

    simulate(run, 3)
    assert all("call: expected ring_attention" in str(errors[rank]) for rank in range(3))


def test_backward_passes_in_another_order_are_refused():
    errors = {}

    def run(group):
        rank = group.axes[0].rank
        x = torch.randn(1, 1, 4, 8, requires_grad=True)
        outputs = [ring_attention(x, x, x, group=group, order=ORDER).sum() for _ in range(2)]
        try:
            outputs[rank == 1].backward()
        except RankError as error:
            errors[rank] = error

    simulate(run, 3)
    assert all(
        "call to differentiate: expected 0, as on rank 0, 2; received 1" in str(errors[r])
        for r in range(3)
    )


@pytest.mark.parametrize("how", ["ends", "hangs"])
def test_a_missing_rank_is_named(how):
    errors = {}

    def run(group):
        rank = group.axes[0].rank
        if rank == 1:
            time.sleep(1.0 if how == "hangs" else 0.0)
            return
        try:
            unshard(torch.zeros(4, 1), group, ORDER)
        except RankError as error:
            errors[rank] = error

    simulate(run, 3, timeout=0.3 if how == "hangs" else 60.0)
    cause = "it did not answer within 0.3 s" if how == "hangs" else "it has ended"
    assert {rank: str(error) for rank, error in errors.items()} == dict.fromkeys(
        (0, 2), f"rank 1: {cause}"
    )


def test_simulated_ranks_raise_the_error_that_blames_nobody():
    def run(group):
        if group.axes[0].rank == 2:
            raise ZeroDivisionError
        unshard(torch.zeros(4, 1), group, ORDER)

    with pytest.raises(ZeroDivisionError):
        simulate(run, 3)


def test_on_a_mesh_a_missing_rank_is_named_in_all_rows():
    errors = {}

    def run(mesh):
        rank = ranks_of(mesh).rank
        if rank == 3:
            return
        try:
            unshard(torch.zeros(3, 1), mesh, contiguous_order(12, 4))
        except RankError as error:
            errors[rank] = error

    simulate(run, 2, 2)
    assert {rank: error.rank for rank, error in errors.items()} == {0: 3, 1: 3, 2: 3}


def test_a_call_after_a_failed_one_gets_none_of_its_messages():
    """A failure in the middle of a pass leaves messages behind, which the next call must not take for its own."""
    x = torch.randn(1, 1, 12, 4)
    expected = attention(x, x, x)
    wrong, compute = torch.full_like(x, 7.0), ring.compute

    def fails_on_sevens(queries, query, *others):
        if bool((query == 7).all()):
            raise ZeroDivisionError
        compute(queries, query, *others)

    def run(group):
        bad, good = shard(wrong, group, ORDER), shard(x, group, ORDER)
        with pytest.raises(ZeroDivisionError):
            ring_attention(bad, bad, bad, group=group, order=ORDER)
        return unshard(ring_attention(good, good, good, group=group, order=ORDER), group, ORDER)

    with mock.patch.object(ring, "compute", fails_on_sevens):
        results = simulate(run, 3, timeout=10)
    for output in results:
        torch.testing.assert_close(output, expected)


def test_a_kernel_that_cannot_place_dropout_is_refused_before_anything_is_sent():
    errors = errors_of(ring_attention, {"kernel": "native", "dropout_p": 0.5}, 1, faulty=0)
    assert "dropout of a part" in str(errors[0])
