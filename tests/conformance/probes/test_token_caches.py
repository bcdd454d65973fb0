"""A model of token ids that keeps keys and values in objects, one for each layer, is causal."""

from __future__ import annotations

from typing import List, Optional  # noqa: UP035 - as in the code of strangers

import torch
from torch import nn

from heedful import check


class LayerMemory:
    """Keys and values of one layer."""

    def __init__(self):
        self.keys = None
        self.values = None

    def grow(self, keys, values):
        if self.keys is not None:
            keys = torch.cat([self.keys, keys], dim=2)
            values = torch.cat([self.values, values], dim=2)
        self.keys, self.values = keys, values
        return keys, values


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, seen, memory):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        k, v = memory.grow(k, v)
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return x + self.out(y.transpose(1, 2).flatten(2))


class Writer(nn.Module):
    """Predicts the next token."""

    def __init__(self, vocab_size: int, dim: int, heads: int, num_layers: int = 2):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(num_layers))

    def seen(self, new, memories):
        before = 0 if memories[0].keys is None else memories[0].keys.shape[2]
        return torch.ones(new, before + new, dtype=torch.bool).tril(before)

    def forward(self, tokens: torch.Tensor, cache: Optional[List[LayerMemory]] = None):  # noqa: UP006, UP045
        memories = cache if cache is not None else [LayerMemory() for _ in self.layers]
        x, seen = self.embed(tokens), self.seen(tokens.shape[1], memories)
        for layer, memory in zip(self.layers, memories, strict=True):
            x = layer(x, seen, memory)
        return x @ self.embed.weight.T


class Unmasked(Writer):
    """Loses the mask on the way."""

    def seen(self, new, memories):
        return None


class Misaligned(Writer):
    """Forgets the tokens in the cache when it makes a mask."""

    def seen(self, new, memories):
        before = 0 if memories[0].keys is None else memories[0].keys.shape[2]
        return torch.ones(new, before + new, dtype=torch.bool).tril()


def test_a_list_of_caches_is_made_for_the_layers():
    report = check(Writer)
    assert report.bugs == ()
    assert "cache" in {fact.name for fact in report.facts}


def test_a_model_that_keeps_tokens_may_not_look_ahead():
    (bug,) = check(Unmasked).bugs
    assert bug.name == "future-leak"
    assert "a cache of the tokens before them" in bug.proof


def test_a_mask_that_forgets_the_cached_tokens_is_found():
    assert [bug.name for bug in check(Misaligned).bugs] == ["causal-alignment"]
