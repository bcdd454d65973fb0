"""merge() turns attention over parts of the keys into attention over all keys."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heedful import ArgumentError, AttentionResult, attention, merge


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.integers(0, 2**31))
def test_parts_merge_into_the_whole(lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn(2, 2, T, 4, generator=generator, dtype=torch.float64, requires_grad=True)
        for T in (3, sum(lengths), sum(lengths))
    )
    whole = attention(query, key, value, return_lse=True)
    parts = [
        attention(query, k, v, return_lse=True)
        for k, v in zip(key.split(lengths, 2), value.split(lengths, 2), strict=True)
    ]
    merged = merge(*parts)
    torch.testing.assert_close(merged.output, whole.output)
    torch.testing.assert_close(merged.lse, whole.lse)
    if sum(lengths):
        tensors = (query, key, value)
        for ours, exact in zip(
            torch.autograd.grad(merged.output.sum() + merged.lse.sum(), tensors),
            torch.autograd.grad(whole.output.sum() + whole.lse.sum(), tensors),
            strict=True,
        ):
            torch.testing.assert_close(ours, exact)


def test_parts_without_visible_keys_change_nothing():
    nothing = AttentionResult(torch.zeros(1, 1, 2, 3), torch.full((1, 1, 2), -torch.inf))
    something = AttentionResult(torch.randn(1, 1, 2, 3), torch.randn(1, 1, 2))
    merged = merge(nothing, something, nothing)
    torch.testing.assert_close(merged.output, something.output)
    torch.testing.assert_close(merged.lse, something.lse)
    both = merge(nothing, nothing)
    assert (both.output == 0).all()
    assert (both.lse == -torch.inf).all()


def test_large_logarithms_do_not_overflow():
    parts = [
        AttentionResult(torch.full((1, 1, 1, 1), float(n)), torch.full((1, 1, 1), 1e4))
        for n in (1, 3)
    ]
    merged = merge(*parts)
    assert merged.output.item() == pytest.approx(2.0)
    assert merged.lse.item() == pytest.approx(1e4 + torch.log(torch.tensor(2.0)).item())


def test_the_outputs_keep_their_dtype():
    part = AttentionResult(torch.randn(1, 1, 2, 3).bfloat16(), torch.randn(1, 1, 2))
    assert merge(part, part).output.dtype == torch.bfloat16


def test_results_that_cannot_be_merged_raise_an_error():
    with pytest.raises(ArgumentError, match="at least one"):
        merge()
    parts = [AttentionResult(torch.randn(1, 1, T, 3), torch.randn(1, 1, T)) for T in (2, 3)]
    with pytest.raises(ArgumentError, match="same shapes"):
        merge(*parts)


def test_results_with_the_received_mass_are_not_merged():
    query = torch.randn(1, 1, 4, 8)
    result = attention(query, query, query, return_received_mass=True)
    with pytest.raises(ArgumentError, match="received mass, which cannot be merged"):
        merge(result)
