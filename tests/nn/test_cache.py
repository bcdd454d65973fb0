"""Tests of `KVCache`."""

import pytest
import torch
from torch.utils import _pytree as pytree

from heedful.errors import ArgumentError
from heedful.nn import KVCache

B, H, CAPACITY, D = 2, 3, 10, 4


def tokens(T, **options):
    return torch.randn(B, H, T, D, **options), torch.randn(B, H, T, D, **options)


def test_append_returns_all_tokens_so_far():
    cache, parts = KVCache.empty(B, H, CAPACITY, D), []
    for T in (3, 1, 1, 5):
        parts.append(tokens(T))
        keys, values, cache = cache.append(*parts[-1])
        assert torch.equal(keys, torch.cat([key for key, _ in parts], dim=2))
        assert torch.equal(values, torch.cat([value for _, value in parts], dim=2))
        assert cache.length == keys.shape[2]


def test_append_without_gradients_does_not_copy():
    with torch.no_grad():
        cache = KVCache.empty(B, H, CAPACITY, D)
        keys, _, longer = cache.append(*tokens(3))
    assert longer.key is cache.key
    assert keys.data_ptr() == cache.key.data_ptr()


def test_append_does_not_change_the_length_of_the_old_cache():
    cache = KVCache.empty(B, H, CAPACITY, D)
    cache.append(*tokens(3))
    assert cache.length == 0


def test_gradients_reach_every_token_through_any_number_of_steps():
    cache, leaves, loss = KVCache.empty(B, H, CAPACITY, D), [], 0
    for T in (2, 1, 1):
        key, value = tokens(T, requires_grad=True)
        leaves += [key, value]
        keys, values, cache = cache.append(key, value)
        loss = loss + (keys.square() * values.square()).sum()  # saves both for the backward pass
    loss.backward()
    for position, (key, value) in enumerate(zip(leaves[::2], leaves[1::2], strict=True)):
        steps = 3 - position  # each later step has it among its keys
        torch.testing.assert_close(key.grad, steps * 2 * key.detach() * value.detach().square())


def test_a_cache_is_a_pytree():
    cache = KVCache.empty(B, H, CAPACITY, D)
    leaves, structure = pytree.tree_flatten([cache, cache])
    assert len(leaves) == 6
    (again, _) = pytree.tree_unflatten(leaves, structure)
    assert isinstance(again, KVCache)
    assert (again.key is cache.key, again.length) == (True, 0)


def test_dtype_and_device():
    cache = KVCache.empty(B, H, CAPACITY, D, dtype=torch.bfloat16, device="meta")
    assert {cache.key.dtype, cache.value.dtype} == {torch.bfloat16}
    assert cache.key.is_meta
    assert cache.value.is_meta


def test_overflow_states_the_remaining_capacity():
    *_, cache = KVCache.empty(B, H, CAPACITY, D).append(*tokens(8))
    cache.append(*tokens(2))
    with pytest.raises(ArgumentError, match="at most 2 tokens: 8 of 10 slots are used; received 3"):
        cache.append(*tokens(3))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (torch.randn(1, H, 1, D), torch.randn(1, H, 1, D)),  # would broadcast
        (torch.randn(B, 1, 1, D), torch.randn(B, 1, 1, D)),
        (torch.randn(B, H, 1, D), torch.randn(B, H, 2, D)),
        (torch.randn(B, H, 1, D + 1), torch.randn(B, H, 1, D)),
        (torch.randn(B, H, D), torch.randn(B, H, D)),
        (torch.randn(B, H, 1, D).bfloat16(), torch.randn(B, H, 1, D).bfloat16()),
    ],
)
def test_keys_that_do_not_fit_are_refused(key, value):
    with pytest.raises(ArgumentError, match=r"expected torch.float32 \(B=2, Hkv=3, T, D=4\)"):
        KVCache.empty(B, H, CAPACITY, D).append(key, value)


def test_sizes_are_checked():
    with pytest.raises(ArgumentError, match="capacity: expected a whole number of at least 1"):
        KVCache.empty(B, H, 0, D)
