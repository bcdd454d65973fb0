"""Ulysses and the mesh on simulated ranks: results and gradients of one process, and what is sent for them."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from parallel_cases import (
    assert_equal,
    bytes_sent,
    in_one_process,
    make_call,
    on_ranks,
    self_attention,
)

from heedful.errors import ArgumentError
from heedful.masks import Causal, Dense, Window
from heedful.parallel import (
    balanced_order,
    contiguous_order,
    mesh_attention,
    simulate,
    ulysses_attention,
)
from heedful.parallel.heads import Heads, aligned_key_heads, split_heads


def bias_is_unclear(call, ranks):
    """Check whether a rank has one query, with which a bias for all queries cannot be told from one for each."""
    return "bias" in call.tensors and call.tokens < 2 * ranks


@settings(max_examples=60)
@given(self_attention(dense=True), st.sampled_from([1, 2, 3, 4, 8]))
def test_float64_results_and_gradients_are_those_of_one_process(call, ranks):
    assume(call.tensors["query"].shape[1] >= ranks and not bias_is_unclear(call, ranks))
    assert_equal(on_ranks(call, ulysses_attention, ranks), in_one_process(call), atol=1e-10)


@settings(max_examples=60)
@given(self_attention(), st.sampled_from([(1, 2), (2, 1), (2, 2), (3, 2), (2, 3), (2, 4)]))
def test_on_a_mesh_results_and_gradients_are_those_of_one_process(call, sizes):
    assume(call.tensors["query"].shape[1] >= sizes[1])
    assume(not bias_is_unclear(call, sizes[0] * sizes[1]))
    assert_equal(on_ranks(call, mesh_attention, *sizes), in_one_process(call), atol=1e-10)


@pytest.mark.parametrize(("Hq", "Hkv"), [(8, 8), (8, 2), (6, 3), (5, 1), (6, 2)])
@pytest.mark.parametrize(
    ("function", "sizes"), [(ulysses_attention, (4,)), (mesh_attention, (2, 4))]
)
def test_float32_with_heads_that_ranks_do_not_divide(function, sizes, Hq, Hkv):
    call = make_call(2, Hq, Hkv, 33, 8, 6, Causal() & Window(20), sinks=True)
    expected = {name: x.float() for name, x in in_one_process(call).items()}
    assert_equal(on_ranks(call.to(torch.float32), function, *sizes), expected, atol=3e-6)


def test_whole_heads_are_computed_as_in_one_process_bit_for_bit():
    call = make_call(2, 8, 4, 40, 8, 8, Causal()).to(torch.float32)
    found, expected = on_ranks(call, ulysses_attention, 4), in_one_process(call)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_dtypes_are_rounded_once_where_ranks_share_key_heads(dtype):
    call = make_call(1, 8, 1, 120, 16, 16, Causal()).to(dtype)
    expected = {name: x.to(dtype) for name, x in in_one_process(call.to(torch.float64)).items()}
    found = on_ranks(call, ulysses_attention, 8)
    for name in ("gradient of key", "gradient of value"):
        largest = expected[name].double().abs()
        off = (found[name].double() - expected[name].double()).abs()
        assert (off <= 1e-5 + 2 * torch.finfo(dtype).eps * largest).all(), name


def test_a_mask_of_each_head_goes_to_its_rank():
    shown = torch.rand(2, 6, 12, 12) > 0.4
    call = make_call(2, 6, 3, 12, 4, 4, Dense(shown))
    assert_equal(on_ranks(call, ulysses_attention, 3), in_one_process(call), atol=1e-10)


def test_heads_are_dealt_out_with_the_key_heads_that_they_read():
    assert split_heads(6, 2, 4) == [
        (Heads(0, 1), Heads(0, 1)),
        (Heads(1, 3), Heads(0, 1)),
        (Heads(3, 4), Heads(1, 2)),
        (Heads(4, 6), Heads(1, 2)),
    ]
    assert aligned_key_heads(Heads(1, 3), 3) is None
    assert aligned_key_heads(Heads(2, 4), 3) is None  # one query head for each of two key heads
    assert aligned_key_heads(Heads(1, 4), 3) == [0, 0, 1]


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_rank_sends_what_others_need_once(ranks):
    call = make_call(2, 8, 4, 32, 8, 6, Causal()).to(torch.float32)
    own, other = 2 * (32 // ranks) * 4, (ranks - 1) / ranks
    arrays = own * other * (8 * 8 + 4 * 8 + 4 * 6 + 8 * 6 + 8)  # query, key, value, output, lse
    assert (
        bytes_sent(call, ulysses_attention, contiguous_order(32, ranks), ranks)
        == [(arrays, arrays)] * ranks
    )


def test_key_heads_that_several_ranks_read_are_sent_to_each():
    call = make_call(1, 4, 1, 32, 8, 8, Causal()).to(torch.float32)
    numbers = 3 * 8 * (8 + 8 + 8) + 3 * 8 * (
        8 + 1
    )  # one head of query, key and value; output and lse
    assert (
        bytes_sent(call, ulysses_attention, contiguous_order(32, 4), 4)
        == [(4 * numbers, 4 * numbers)] * 4
    )


def test_more_ranks_than_query_heads_are_refused():
    x, order = torch.zeros(1, 2, 2, 4), contiguous_order(6, 3)
    with pytest.raises(
        ArgumentError, match=r"at least 3 query heads.*received 2 heads.*ring_attention"
    ):
        simulate(lambda group: ulysses_attention(x, x, x, group=group, order=order), 3)
    with pytest.raises(ArgumentError, match="a DeviceMesh of 2 dimensions"):
        simulate(lambda group: mesh_attention(x, x, x, group=group, order=order), 3)


def test_the_order_of_a_mesh_is_balanced_between_its_rows():
    order = balanced_order(Causal(), 64, 6).joined(2)
    work = [float(sum(p + 1 for p in places.tolist())) for places in order.places]
    assert max(work) <= 1.15 * sum(work) / len(work)
