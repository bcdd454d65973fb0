"""The cache of a target is found by trial, and chunks with it give what a single run gives."""

from __future__ import annotations

import pytest
import torch

from conformance.calling.attentions import Projected, Slots, attend, causal_with, small_gpt
from heedful import check
from heedful.conformance import Example
from heedful.conformance.calling.subject import find_subject
from heedful.gpt.config import GPTConfig
from heedful.nn import MultiHeadAttention, RotaryEmbedding


class Grown(Projected):
    """Returns the keys and values so far as a tuple, and takes them back."""

    def forward(self, x, past_kv=None):
        q, k, v = self.split(x)
        if past_kv is not None:
            k, v = (torch.cat(pair, dim=1) for pair in zip(past_kv, (k, v), strict=True))
        return causal_with(q, k, v), (k, v)


class Dictionary(Projected):
    """Keeps keys and values in a dictionary of the caller."""

    def forward(self, x, cache=None):
        q, k, v = self.split(x)
        if cache is not None:
            k, v = (
                torch.cat([cache[n], it], 1) if n in cache else it for n, it in (("k", k), ("v", v))
            )
            cache["k"], cache["v"] = k, v
        return causal_with(q, k, v)


class Flagged(Projected):
    """Keeps keys and values in the module while a flag is set."""

    def __init__(self, d_model):
        super().__init__(d_model)
        self.cache = None

    def forward(self, x, use_cache=False):
        q, k, v = self.split(x)
        if use_cache:
            if self.cache is not None:
                k, v = (torch.cat(pair, 1) for pair in zip(self.cache, (k, v), strict=True))
            self.cache = (k, v)
        return causal_with(q, k, v)


class PassedSlots(Projected):
    """Takes slots from the caller, (B, H, capacity, D), for keys and values separately."""

    def __init__(self, d_model, n_heads):
        super().__init__(d_model)
        self.n_heads, self.head_dim = n_heads, d_model // n_heads

    def forward(self, x, k_cache=None, v_cache=None, start_pos=0):
        B, T, C = x.shape
        q, k, v = (it.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for it in self.split(x))
        if k_cache is not None and v_cache is not None:
            k_cache[:, :, start_pos : start_pos + T] = k
            v_cache[:, :, start_pos : start_pos + T] = v
            k, v = (it[:, :, : start_pos + T] for it in (k_cache, v_cache))
        return causal_with(q, k, v).transpose(1, 2).reshape(B, T, C)


class MaskFromCaller(Slots):
    """Has slots in the module and takes a mask from the caller, like Llama's first code."""

    def forward(self, x, start_pos, mask):
        q, k, v = self.split(x)
        B, stop = x.shape[0], start_pos + x.shape[1]
        self.k_cache[:B, start_pos:stop], self.v_cache[:B, start_pos:stop] = k, v
        scores = q @ self.k_cache[:B, :stop].mT
        if mask is not None:
            scores = scores + mask
        return scores.softmax(-1) @ self.v_cache[:B, :stop]


class Broken(Grown):
    """Appends along the wrong axis."""

    def forward(self, x, past_kv=None):
        q, k, v = self.split(x)
        if past_kv is not None:
            k, v = (torch.cat(pair, dim=2) for pair in zip(past_kv, (k, v), strict=True))
        return causal_with(q, k, v), (k, v)


@pytest.mark.parametrize(
    ("target", "kind", "argument"),
    [
        (Grown, "grown", "past_kv"),
        (Dictionary, "object", "cache"),
        (Slots, "buffers", "start_pos"),
        (Flagged, "buffers", "use_cache"),
        (PassedSlots, "object", "k_cache, v_cache"),
        (MaskFromCaller, "buffers", "start_pos"),
        (MultiHeadAttention(12, 2, rotary=RotaryEmbedding(6)), "object", "cache"),
        (MultiHeadAttention(12, 2, window=3), "object", "cache"),
        (small_gpt(GPTConfig.gpt2), "object", "caches"),
        (small_gpt(GPTConfig.llama), "object", "caches"),
    ],
    ids=lambda it: it if isinstance(it, str) else getattr(it, "__name__", type(it).__name__),
)
def test_chunks_with_a_cache_equal_one_run(target, kind, argument):
    subject = find_subject(target)
    assert subject.cache_use is not None
    assert (subject.cache_use.kind, subject.cache_use.argument) == (kind, argument)
    inputs = subject.draw(2, 7)
    whole = subject.run(inputs)
    for sizes in ([6, 1], [3, 3, 1], [1] * 7):
        pieces = [it.output for it in subject.run_in_chunks(inputs, sizes)]
        assert [it.shape[1] for it in pieces] == sizes
        torch.testing.assert_close(torch.cat(pieces, dim=1), whole)
    torch.testing.assert_close(subject.run(inputs), whole)  # the cache left nothing behind


@pytest.mark.parametrize("target", [Slots, PassedSlots, MultiHeadAttention(12, 2)], ids=repr)
def test_unused_slots_are_filled_with_the_given_number(target):
    subject = find_subject(target)
    inputs = subject.draw(2, 7)
    filled = subject.run_in_chunks(inputs, [4, 3], unused=float("nan"))
    torch.testing.assert_close(torch.cat([it.output for it in filled], 1), subject.run(inputs))
    seen = [it for it in filled[0].values.values() if it.is_floating_point() and it.isnan().any()]
    assert seen, "no slot was NaN"


def test_a_bidirectional_target_has_no_cache():
    assert find_subject(MultiHeadAttention(12, 2, causal=False)).cache_use is None


def test_a_cache_that_fails_at_the_second_chunk_is_found():
    subject = find_subject(Broken)
    assert subject.cache_use is not None
    with pytest.raises(RuntimeError):
        subject.run_in_chunks(subject.draw(2, 6), [4, 2])


def test_the_user_may_supply_the_cache():
    class Pair:
        def __init__(self, batch, capacity):
            self.k, self.v = torch.zeros(2, batch, 0, 24, dtype=torch.float64)

    class Own(Projected):
        def forward(self, x, memo_cache=None, cache=None):
            q, k, v = self.split(x)
            if cache is not None:
                cache.k, cache.v = torch.cat([cache.k, k], 1), torch.cat([cache.v, v], 1)
                k, v = cache.k, cache.v
            return causal_with(q, k, v)

    subject = find_subject(Own, cache=Pair)
    inputs = subject.draw(2, 6)
    pieces = [it.output for it in subject.run_in_chunks(inputs, [4, 2])]
    torch.testing.assert_close(torch.cat(pieces, 1), subject.run(inputs))


class LatePositions(Projected):
    """Keeps keys without their positions, and adds those of all keys, of which a single one would be broadcast."""

    def forward(self, x, places, cache=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v = self.split(x)
        if cache is not None:
            k, v = (torch.cat(pair, 1) for pair in zip(cache, (k, v), strict=True))
        Tq, Tk = q.shape[1], k.shape[1]
        hidden = torch.ones(Tq, Tk, dtype=torch.bool).triu(Tk - Tq + 1)
        return attend(q + places[-Tq:], k + places[-Tk:], v, hidden), (k, v)


def test_a_table_of_an_example_is_given_for_all_tokens_where_the_cache_needs_it():
    example = Example(torch.randn(2, 9, 24), torch.randn(9, 24))
    subject = find_subject(LatePositions(24), example=example, causal=True)
    assert subject.cache_use is not None
    assert subject.cache_use.whole == ("places",)
    assert check(LatePositions(24), example=example, causal=True).bugs == ()
