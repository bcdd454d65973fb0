"""A constructor that takes a ready-made module gets one from the same file."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from conformance.calling.attentions import Projected, attend
from heedful import ArgumentError
from heedful.conformance import check
from heedful.conformance.calling.subject import find_subject


class SampledAttention(nn.Module):
    """Attends for the queries that differ most among sampled keys; the others get the mean of the values."""

    def forward(self, queries, keys, values, chosen=4):
        T = keys.shape[2]
        sample = keys[:, :, torch.randint(0, T, (T,))]
        spread = queries @ sample.mT
        spread = spread.max(-1).values - spread.mean(-1)
        top = (
            spread.topk(min(chosen, T), sorted=False)
            .indices[..., None]
            .expand(-1, -1, -1, queries.shape[-1])
        )
        context = attend(queries.gather(2, top), keys, values)
        return values.mean(2, keepdim=True).expand_as(queries).scatter(2, top, context)


class PlainAttention(nn.Module):
    def forward(self, queries, keys, values):
        return attend(queries, keys, values)


class Layer(Projected):
    """Leaves what happens between its projections to the attention that it is given."""

    def __init__(self, attention, d_model):
        super().__init__(d_model)
        self.inner = attention

    def forward(self, x):
        return self.inner(*(part[:, None] for part in self.split(x))).squeeze(1)


class Annotated(Layer):
    def __init__(self, part: SampledAttention, d_model):
        super().__init__(part, d_model)


def test_a_part_of_the_file_is_built():
    module = find_subject(Layer).module
    assert module is not None
    assert type(module.inner) in (SampledAttention, PlainAttention)


@pytest.mark.parametrize("definition", [Layer, Annotated])
def test_tokens_that_are_chosen_by_the_data_and_by_chance_are_no_bug(definition):
    assert not check(definition).bugs


class RoPE(nn.Module):
    def __init__(self, dim, longest=64):
        super().__init__()
        angles = torch.arange(longest)[:, None] * 1e4 ** (-torch.arange(0, dim, 2) / dim)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x):
        cos, sin = self.cos[: x.shape[2]], self.sin[: x.shape[2]]
        x, y = x[..., 0::2], x[..., 1::2]
        return torch.cat([x * cos - y * sin, x * sin + y * cos], -1)


class Rotated(nn.Module):
    """Rotates the queries and keys of its heads."""

    def __init__(self, d_model, num_heads, rope):
        super().__init__()
        self.num_heads = num_heads
        self.rope = rope
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return attend(self.rope(q), self.rope(k), v).transpose(1, 2).flatten(2)


def test_a_rotation_is_built_for_the_size_of_a_head():
    assert not check(Rotated).bugs


class Inner(nn.Module):
    """Takes the class that takes it."""

    def __init__(self, outer):
        super().__init__()
        self.outer = outer

    def forward(self, x):
        return self.outer(x)


class Outer(Projected):
    def __init__(self, inner, d_model):
        super().__init__(d_model)
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def test_two_classes_that_take_each_other_are_not_built_for_ever():
    with pytest.raises(ArgumentError):
        check(Outer)
