"""The order of tokens over ranks: every token once, equal work, few runs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heedful.errors import ArgumentError
from heedful.masks import Band, Causal, Dense, Documents, Padding, Prefix, Sinks, Window
from heedful.parallel import TokenOrder, balanced_order, contiguous_order
from strategies import masks

UNEVEN = [750, 5, 1, 225, 600, 16, 2, 300, 75, 74]  # tokens of packed documents


def documents(lengths):
    return Documents(torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)))


def busiest_by_mean(order, mask, tokens):
    """Count visible pairs in the dense mask, which shares no code with the order."""
    pairs = mask.dense(tokens).sum(dim=(0, 1, 3))
    work = torch.stack([pairs[places].sum() for places in order.places]).double()
    return float(work.max() / work.mean())


def runs(order):
    return max(int((places.diff() > 1).sum()) + 1 for places in order.places)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize(
    "mask",
    [
        Causal(),
        Window(64),
        Causal() & (Sinks(4) | Window(64)),
        Band(25, 75),
        Prefix(400),
        documents(UNEVEN),
        Causal() & documents(UNEVEN),
        Causal() & Window(125) & documents(UNEVEN),
    ],
    ids=repr,
)
def test_the_busiest_rank_has_at_most_15_percent_more_work_than_the_mean(mask, ranks):
    tokens = sum(UNEVEN)
    order = balanced_order(mask, tokens, ranks)
    assert busiest_by_mean(order, mask, tokens) <= 1.15
    sizes = [len(places) for places in order.places]
    assert max(sizes) - min(sizes) <= 64


def test_a_causal_mask_pairs_blocks_from_both_ends():
    order = balanced_order(Causal(), 12, 3)
    assert [p.tolist() for p in order.places] == [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]]


@pytest.mark.parametrize("mask", [None, Window(16), Band(3, 3)])
def test_a_mask_that_is_balanced_in_one_run_stays_in_one_run(mask):
    assert runs(balanced_order(mask, 4096, 4)) == 1


@given(st.data())
def test_every_token_is_on_one_rank(data):
    tokens, ranks = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 9))
    mask = data.draw(masks(2, 1, tokens, tokens, dense=False))
    if mask.intervals(tokens, batch=2) is None:
        return
    order = balanced_order(mask, tokens, ranks, batch=2)
    assert order.ranks == ranks
    assert sorted(torch.cat(order.places).tolist()) == list(range(tokens))
    assert torch.equal(torch.cat(order.places)[order.inverse], torch.arange(tokens))


def test_padding_of_a_batch_is_counted_over_all_sequences():
    mask = Causal() & Padding([1000, 10])
    order = balanced_order(mask, 1000, 4, batch=2)
    pairs = mask.dense(1000, batch=2).sum(dim=(0, 1, 3))
    work = torch.stack([pairs[places].sum() for places in order.places]).double()
    assert work.max() <= 1.15 * work.mean()


def test_joined_ranks_have_the_tokens_of_all():
    joined = TokenOrder(tuple(torch.tensor(p) for p in ([0, 5], [1], [2, 4], [3]))).joined(2)
    assert [places.tolist() for places in joined.places] == [[0, 1, 5], [2, 3, 4]]


@pytest.mark.parametrize("places", [[[0, 1], [1, 2]], [[1, 0]], [[0], [2]], []])
def test_an_order_that_is_none_is_refused(places):
    with pytest.raises(ArgumentError, match="every token once"):
        TokenOrder(tuple(torch.tensor(p) for p in places))


def test_what_cannot_be_ordered_is_refused():
    with pytest.raises(ArgumentError, match="key ranges"):
        balanced_order(Dense(torch.eye(4).bool()), 4, 2)
    with pytest.raises(ArgumentError, match="ranks: expected an integer of at least 1"):
        contiguous_order(4, 0)
    with pytest.raises(ArgumentError, match="the document of each of the 5 keys"):
        balanced_order(documents([2, 2]), 5, 2)
