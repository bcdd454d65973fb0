"""Tests of the probe that changes the number of key heads."""

import torch
from torch import nn

from heedful.conformance import check


class OfImage(nn.Module):
    """Attention of an image's pixels; its groups are those of the normalization, and not of heads."""

    def __init__(self, n_channels: int, n_heads: int = 1, n_groups: int = 32):
        super().__init__()
        self.norm = nn.GroupNorm(n_groups, n_channels)
        self.projection = nn.Linear(n_channels, 3 * n_channels)
        self.n_heads = n_heads

    def forward(self, x):
        B, C, Y, X = x.shape
        tokens = self.norm(x).flatten(2).transpose(1, 2)
        qkv = self.projection(tokens).view(B, Y * X, 3, self.n_heads, C // self.n_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) * (C // self.n_heads) ** -0.5).softmax(-1)
        context = (weights @ v).transpose(1, 2).flatten(2)
        return x + context.transpose(1, 2).view(B, C, Y, X)


class Grouped(nn.Module):
    """Grouped heads whose keys fit only if their number squared is that of the query heads."""

    def __init__(self, dim: int, num_heads: int = 4, num_kv_heads: int = 2):
        super().__init__()
        self.heads, self.size = num_heads, dim // num_heads
        self.kv_heads = num_heads // num_kv_heads
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, num_kv_heads * self.size)
        self.v = nn.Linear(dim, num_kv_heads * self.size)

    def forward(self, x):
        B, T, C = x.shape
        q = self.q(x).view(B, T, self.heads, self.size).transpose(1, 2)
        k, v = (
            it(x).view(B, T, self.kv_heads, self.size).transpose(1, 2) for it in (self.k, self.v)
        )
        k, v = (it.repeat_interleave(self.heads // self.kv_heads, 1) for it in (k, v))
        weights = (q @ k.transpose(-1, -2) * self.size**-0.5).softmax(-1)
        return (weights @ v).transpose(1, 2).reshape(B, T, C)


def test_groups_of_a_normalization_are_no_key_heads():
    assert check(OfImage).bugs == ()


def test_sizes_that_fit_one_number_of_key_heads_are_found():
    (bug,) = check(Grouped).bugs
    assert bug.name == "crashes"
    assert "With 1 heads of keys and values" in bug.proof


class Tiled(nn.Module):
    """Computes groups of heads one by one; the number of a group is right if there are as many as members."""

    def __init__(self, hidden_size: int, num_attention_heads: int, num_kv_heads: int):
        super().__init__()
        self.heads, self.kv_heads = num_attention_heads, num_kv_heads
        self.size = hidden_size // num_attention_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.size)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.size)

    def forward(self, x):
        q, k, v = (
            it(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for it in (self.q_proj, self.k_proj, self.v_proj)
        )
        members, contexts = self.heads // self.kv_heads, []
        for first in range(0, self.heads, members):
            group = first // self.kv_heads
            key, value = k[:, group : group + 1], v[:, group : group + 1]
            weights = q[:, first : first + members] @ key.mT * self.size**-0.5
            contexts.append(weights.softmax(-1) @ value)
        return torch.cat(contexts, 1).transpose(1, 2).flatten(2)


def test_heads_that_no_query_reads_are_found_by_other_numbers_of_them():
    (bug,) = check(Tiled).bugs
    assert bug.name == "group-order"
    assert bug.place is not None
    assert bug.place.source == "group = first // self.kv_heads"


class TiledByConfiguration(Tiled):
    """Takes a dictionary in which the number of key heads may be left out, and computes no gradients."""

    def __init__(self, model_config: dict):
        heads = model_config["num_attention_heads"]
        super().__init__(
            model_config["hidden_size"], heads, model_config.get("num_kv_heads", heads)
        )

    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)


def test_heads_of_an_optional_number_are_read_without_gradients_too():
    (bug,) = check(TiledByConfiguration).bugs
    assert bug.name == "group-order"
    assert bug.place is not None
    assert bug.place.source == "group = first // self.kv_heads"
