"""Sharding: each token on its rank and back again, with gradients; what is sharded already is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ArgumentError, RankError
from heedful.masks import Causal
from heedful.parallel import balanced_order, contiguous_order, shard, simulate, unshard
from heedful.parallel.axes import ranks_of

MESHES = [(1,), (2,), (3,), (2, 2), (2, 3)]


@settings(max_examples=30)
@given(st.sampled_from(MESHES), st.integers(1, 20), st.integers(-3, 2))
def test_unshard_returns_what_shard_took_apart(sizes, tokens, dim):
    shape = [2, 3, 4]
    shape[dim] = tokens
    whole = torch.randn(shape)
    order = balanced_order(Causal(), tokens, torch.tensor(sizes).prod().item())

    def there_and_back(group):
        return unshard(shard(whole, group, order, dim=dim), group, order, dim=dim)

    for result in simulate(there_and_back, *sizes):
        assert torch.equal(result, whole)


@pytest.mark.parametrize("sizes", MESHES)
def test_gradients_are_those_of_the_sum_of_all_losses(sizes):
    ranks = torch.tensor(sizes).prod().item()
    order = balanced_order(Causal(), 7, ranks)
    weights = torch.randn(ranks, 7, 2, dtype=torch.float64)
    whole = torch.randn(7, 2, dtype=torch.float64, requires_grad=True)

    def gradient(group):
        rank = ranks_of(group).rank
        leaf = whole.detach().requires_grad_()
        loss = (unshard(shard(leaf, group, order).square(), group, order) * weights[rank]).sum()
        return torch.autograd.grad(loss, leaf)[0]

    (expected,) = torch.autograd.grad((whole.square() * weights.sum(dim=0)).sum(), whole)
    torch.testing.assert_close(sum(simulate(gradient, *sizes)), expected)


def test_what_is_sharded_already_is_refused():
    order = contiguous_order(6, 2)

    def twice(group):
        return shard(shard(torch.zeros(6, 1), group, order), group, order)

    with pytest.raises(
        ArgumentError, match=r"expected all 6 tokens in dimension -2; received shape \(3, 1\)"
    ):
        simulate(twice, 2)
    with pytest.raises(ArgumentError, match="expected the 3 tokens of this rank"):
        simulate(lambda group: unshard(torch.zeros(6, 1), group, order), 2)
    with pytest.raises(ArgumentError, match="a TokenOrder for 3 ranks; received one for 2"):
        simulate(lambda group: shard(torch.zeros(6, 1), group, order), 3)
    with pytest.raises(ArgumentError, match="a process group or a DeviceMesh"):
        shard(torch.zeros(6, 1), None, order)


def test_ranks_that_unshard_different_tensors_are_named():
    order = contiguous_order(6, 3)
    errors = [None] * 3

    def mismatch(group):
        rank = group.axes[0].rank
        dtype = torch.float64 if rank == 1 else torch.float32
        try:
            unshard(torch.zeros(2, 5, dtype=dtype), group, order)
        except RankError as error:
            errors[rank] = error

    simulate(mismatch, 3)
    for error in errors:
        assert error.rank == 1
        assert "tensor: expected float32 (tokens, 5), as on rank 0, 2; received float64" in str(
            error
        )
