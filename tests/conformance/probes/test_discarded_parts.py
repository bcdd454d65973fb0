"""What is named, split off and then not used, and what is named and then read along the wrong axis."""

from __future__ import annotations

import pytest
import torch
from attentions_with_caches import written
from torch import nn
from torch.nn import functional as F

from heedful import check


class Pooled(nn.Module):
    """Attends to memory that is attended to before; the second attention has keys and values of its own."""

    def __init__(self, d_model):
        super().__init__()
        self.in_proj, self.to_q = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.to_kv = nn.Linear(d_model, 2 * d_model)

    def forward(self, x):
        first = F.scaled_dot_product_attention(*self.in_proj(x).chunk(3, dim=-1))
        k, v = self.second(first)
        return F.scaled_dot_product_attention(self.to_q(x), k, v)

    def second(self, first):
        return self.to_kv(first).chunk(2, dim=-1)


class ValuesDiscarded(Pooled):
    def second(self, first):
        k, _ = self.to_kv(first).chunk(2, dim=-1)
        return k, first


class KeysDiscarded(Pooled):
    def second(self, first):
        D = first.shape[-1]
        parts = torch.split(torch.einsum("btc, dc -> btd", first, self.to_kv.weight), [D, D], -1)
        return self.in_proj(first)[..., :D], parts[1]


class RestDiscarded(Pooled):
    """Splits off a rest that no name promises."""

    def __init__(self, d_model):
        super().__init__(d_model)
        self.mix = nn.Linear(d_model, 3 * d_model)

    def second(self, first):
        k, v, _ = self.mix(first).chunk(3, dim=-1)
        return k, v


@pytest.mark.parametrize(("target", "role"), [(ValuesDiscarded, "value"), (KeysDiscarded, "key")])
def test_a_part_that_the_name_of_a_projection_promises_is_missed(target, role):
    (bug,) = (it for it in check(target).bugs if it.name == "projection-unused")
    assert f"The {role} part of to_kv" in bug.proof
    assert bug.place is not None
    assert "to_kv" in bug.place.source


def test_a_rest_without_a_name_and_used_parts_are_right():
    for target in (Pooled, RestDiscarded):
        assert "projection-unused" not in [it.name for it in check(target).bugs]


class Pixels(nn.Module):
    """Attends over pixels, with the channels first."""

    def __init__(self, channels):
        super().__init__()
        self.to_query = nn.Conv2d(channels, channels, 1)
        self.to_key = nn.Conv2d(channels, channels, 1)
        self.to_value = nn.Conv2d(channels, channels, 1)

    def mix(self, v, weights):
        return torch.einsum("bcj, bij -> bci", v, weights)

    def forward(self, x):
        query, key, value = (f(x).flatten(2) for f in (self.to_query, self.to_key, self.to_value))
        weights = (query.transpose(1, 2) @ key / x.shape[1] ** 0.5).softmax(dim=-1)
        return self.mix(value, weights).view_as(x)


class NotTransposed(Pixels):
    def mix(self, v, weights):
        return v @ weights


class ByLetters(Pixels):
    def mix(self, v, weights):
        return torch.einsum("bcj, bji -> bci", v, weights)


@pytest.mark.parametrize(("target", "word"), [(NotTransposed, "v @"), (ByLetters, "bji")])
def test_weights_that_meet_the_values_along_the_queries_are_found_where_they_do(target, word):
    (bug,) = check(target).bugs
    assert bug.name == "softmax-wrong-dim"
    assert bug.place is not None
    assert word in bug.place.source


def test_weights_that_meet_the_values_along_the_keys_are_right():
    assert not check(Pixels).bugs


class MaskedByHand(nn.Module):
    def __init__(self, d_model, context_length=16):
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)
        hidden = torch.ones(context_length, context_length, dtype=torch.bool).triu(1)
        self.register_buffer("hidden", hidden)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        hidden = self.hidden[: x.shape[1], : x.shape[1]]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=hidden)


class ComparedByHand(MaskedByHand):
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        i = torch.arange(x.shape[1])
        seen = i[:, None] < i
        return F.scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=seen)


@pytest.mark.parametrize(
    ("target", "word"), [(MaskedByHand, "hidden = "), (ComparedByHand, "seen = ")]
)
def test_an_inverted_mask_of_a_fused_call_is_named_where_it_is_made(target, word):
    (bug,) = check(target, causal=True).bugs
    assert bug.name == "mask-inverted"
    assert bug.place is not None
    assert bug.place.source.startswith(word)


WRAPPED = """import torch
import torch.nn.functional as F
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        return self.out(F.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1)))


class Gated(nn.Module):
    '''Adds a part to the tokens by a gate that is closed at first.'''

    def __init__(self, width, inner):
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(width), nn.Parameter(torch.zeros(1))
        self.inner = inner

    def forward(self, x):
        return x + self.gate * self.inner(self.norm(x))


class Attention(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.mixed = nn.Conv1d(width, width, 3, padding=1)
        self.attended = Gated(width, SelfAttention(width))

    def forward(self, x):
        return self.attended(x + self.mixed(x.mT).mT)
"""


@pytest.mark.parametrize(
    ("edits", "lines"),
    [
        ({}, []),
        ({"self.inner(self.norm(x))": "self.norm(x)"}, ["return x + self.gate * self.norm(x)"]),
        # Another class may call what the wrapper keeps.
        ({"self.inner(self.norm(x))": "self.norm(x)", "mixed(x.mT).mT": "attended.inner(x)"}, []),
        # Nobody gave the module this part.
        (
            {"self.inner(self.norm(x))": "self.norm(x)", "inner = inner": "inner = SelfAttention(width)"},
            [],
        ),
    ],
)  # fmt: skip
def test_a_module_calls_the_attention_that_it_is_given(tmp_path, edits, lines):
    source = WRAPPED
    for old, new in edits.items():
        assert old in source
        source = source.replace(old, new)
    with written(tmp_path, source) as target:
        bugs = [bug for bug in check(target).bugs if bug.name == "attention-ignored"]
    assert [bug.place and bug.place.source for bug in bugs] == lines
