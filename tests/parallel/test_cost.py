"""Predictions: the bytes that ranks really send, and the pairs that a mask really shows."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from parallel_cases import bytes_sent, self_attention

from heedful.errors import ArgumentError
from heedful.masks import Causal, Window
from heedful.parallel import (
    AttentionSizes,
    balanced_order,
    contiguous_order,
    mesh_attention,
    predict_cost,
    ring_attention,
    ulysses_attention,
)


def sizes_of(call):
    query, key, value = (call.tensors[name] for name in ("query", "key", "value"))
    B, Hq, _, D = query.shape
    return AttentionSizes(B, Hq, key.shape[1], D, value.shape[3], query.dtype)


MESHES = [
    (ring_attention, (1,), 1),
    (ring_attention, (3,), 1),
    (ring_attention, (4,), 1),
    (ulysses_attention, (2,), 2),
    (ulysses_attention, (3,), 3),
    (mesh_attention, (2, 2), 2),
    (mesh_attention, (2, 3), 3),
    (mesh_attention, (3, 2), 2),
]


@settings(max_examples=60)
@given(
    self_attention(),
    st.sampled_from(MESHES),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_ranks_send_the_predicted_bytes(call, mesh, dtype):
    function, sizes, ulysses = mesh
    assume(call.tensors["query"].shape[1] >= ulysses)
    call = call.to(dtype)
    ranks = torch.tensor(sizes).prod().item()
    B = call.tensors["query"].shape[0]
    order = balanced_order(call.mask, call.tokens, ranks, batch=B)
    cost = predict_cost(call.mask, order, sizes_of(call), ulysses=ulysses)
    found = bytes_sent(call, function, order, *sizes)
    assert [forward for forward, _ in found] == list(cost.forward_bytes)
    assert [backward for _, backward in found] == list(cost.backward_bytes)


@settings(max_examples=30)
@given(self_attention(), st.sampled_from([1, 2, 4]))
def test_pairs_are_those_that_the_mask_shows(call, ranks):
    sizes, tokens = sizes_of(call), call.tokens
    order = balanced_order(call.mask, tokens, ranks, batch=sizes.batch)
    shown = torch.ones(sizes.batch, 1, tokens, tokens)
    if call.mask is not None:
        shown = call.mask.dense(tokens, batch=sizes.batch).expand_as(shown)
    pairs = [int(shown[:, :, places].sum()) * sizes.query_heads for places in order.places]
    assert list(predict_cost(call.mask, order, sizes).pairs) == pairs


def test_closed_formulas_for_long_sequences():
    """A ring sends every key to n − 1 others, a window only its overlap, and Ulysses as much for any n."""
    T, n = 2**18, 8
    sizes = AttentionSizes(batch=1, query_heads=8, key_heads=8, head_size=64, value_size=64)
    order = contiguous_order(T, n)
    token = 8 * (64 + 64) * 4
    full = predict_cost(None, order, sizes)
    assert full.forward_bytes == ((n - 1) * T // n * token,) * n
    window = predict_cost(Window(4097), order, sizes)
    assert window.forward_bytes == (4096 * token,) * (n - 1) + (0,)
    ulysses = predict_cost(None, order, sizes, ulysses=n)
    assert ulysses.forward_bytes == (T // n * (n - 1) // n * (2 * token + 8 * 4),) * n
    assert ulysses.pairs == (T * T,) * n


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_predicted_work_is_balanced(ranks):
    sizes = AttentionSizes(1, 4, 2, 8, 8)
    pairs = predict_cost(Causal(), balanced_order(Causal(), 3000, ranks), sizes).pairs
    assert sum(pairs) == 4 * 3000 * 3001 // 2
    assert max(pairs) <= 1.05 * sum(pairs) / ranks


def test_a_mesh_that_does_not_fit_is_refused():
    with pytest.raises(ArgumentError, match="a divisor of 4 ranks, and at most 2, the query heads"):
        predict_cost(None, contiguous_order(8, 4), AttentionSizes(1, 2, 1, 8, 8), ulysses=4)
