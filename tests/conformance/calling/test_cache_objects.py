"""Objects that hold a cache are found by the annotation, by the file's own classes, or by the methods called."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from conformance.calling.attentions import Projected, causal_with
from heedful.conformance import check
from heedful.conformance.calling.subject import find_subject


class Memory:
    """Grows by one call at a time."""

    def __init__(self) -> None:
        self.parts: list[tuple[Tensor, Tensor]] = []

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        self.parts.append((k, v))
        return tuple(torch.cat(it, dim=1) for it in zip(*self.parts, strict=True))


class SlotCache(nn.Module):
    """Has a slot for each token."""

    def __init__(self, batch_size: int, max_seq_len: int, d_model: int) -> None:
        super().__init__()
        self.register_buffer("slots", torch.zeros(2, batch_size, max_seq_len, d_model))
        self.filled = 0

    def put(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        stop = self.filled + k.shape[1]
        self.slots[0, :, self.filled : stop], self.slots[1, :, self.filled : stop] = k, v
        self.filled = stop
        return self.slots[0, :, :stop], self.slots[1, :, :stop]


class Annotated(Projected):
    def forward(self, x: Tensor, cache: Memory | None = None) -> Tensor:
        q, k, v = self.split(x)
        if cache is not None:
            k, v = cache.extend(k, v)
        return causal_with(q, k, v)


class Unannotated(Projected):
    def __init__(self, d_model):
        super().__init__(d_model)
        self.d_model = d_model

    def forward(self, x, kv_cache=None):
        q, k, v = self.split(x)
        if kv_cache is not None:
            k, v = kv_cache.put(k, v)
        return causal_with(q, k, v)


class LikeTransformers(Projected):
    def forward(self, hidden_states, past_key_value=None):
        q, k, v = self.split(hidden_states)
        if past_key_value is not None:
            k, v = past_key_value.update(k[:, None], v[:, None], 3)
            k, v = k[:, 0], v[:, 0]
        return causal_with(q, k, v)


class Switched(Projected):
    """Keeps a pair in the module while a flag of another name is set."""

    def __init__(self, d_model):
        super().__init__(d_model)
        self.kv_cache = None

    def forward(self, x, use_kv_cache: bool):
        q, k, v = self.split(x)
        if use_kv_cache:
            if self.kv_cache is not None:
                k, v = (torch.cat(pair, 1) for pair in zip(self.kv_cache, (k, v), strict=True))
            self.kv_cache = (k, v)
        return causal_with(q, k, v)


class IgnoresIt(Projected):
    def forward(self, x: Tensor, cache: Memory | None = None) -> Tensor:
        return causal_with(*self.split(x))


class Unmasked(Projected):
    """Masks nothing while it fills the cache."""

    def forward(self, x: Tensor, cache: Memory | None = None) -> Tensor:
        q, k, v = self.split(x)
        if cache is None:
            return causal_with(q, k, v)
        k, v = cache.extend(k, v)
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ v


class OneByOne(Projected):
    """Shows all keys to the tokens of a later call: there is one token in each."""

    def forward(self, x: Tensor, cache: Memory | None = None) -> Tensor:
        q, k, v = self.split(x)
        # once the cache is filled, the length is 1
        if cache is None or not cache.parts:
            return causal_with(q, *(cache.extend(k, v) if cache is not None else (k, v)))
        k, v = cache.extend(k, v)
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ v


class TokensBeforeHeads(Projected):
    """Calls a cache like those of transformers, but one that appends along another axis."""

    def forward(self, x, past_key_value=None):
        q, k, v = self.split(x)
        if past_key_value is not None:
            k, v = past_key_value.update(k[:, :, None], v[:, :, None], 0)
            k, v = k[:, :, 0], v[:, :, 0]
        return causal_with(q, k, v)


@pytest.mark.parametrize("target", [Annotated, Unannotated, LikeTransformers, Switched])
def test_chunks_with_the_object_equal_one_run(target):
    subject = find_subject(target)
    assert subject.cache_use is not None
    inputs = subject.draw(2, 7)
    whole = subject.run(inputs)
    for sizes in ([6, 1], [3, 3, 1]):
        pieces = [it.output for it in subject.run_in_chunks(inputs, sizes)]
        torch.testing.assert_close(torch.cat(pieces, dim=1), whole)


def test_an_object_that_was_made_wrongly_is_no_broken_cache():
    assert find_subject(TokensBeforeHeads).cache_use is None


def test_an_object_to_which_nothing_is_written_is_no_cache():
    assert find_subject(IgnoresIt).cache_use is None


def test_a_mask_that_is_left_out_with_a_cache_is_found():
    assert "causal-alignment" in [bug.name for bug in check(Unmasked, causal=True).bugs]


def test_several_tokens_are_not_given_to_a_filled_cache_that_takes_one():
    assert "causal-alignment" not in [bug.name for bug in check(OneByOne, causal=True).bugs]
