"""An attention that joins earlier keys to its own counts its positions from the first of them."""

from __future__ import annotations

import pytest
from attentions_with_caches import written

from heedful import check

RELATIVE = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, config, position_embedding_type="absolute"):
        super().__init__()
        self.heads, size = config.num_attention_heads, config.hidden_size
        self.is_decoder = config.is_decoder
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))
        self.position_embedding_type = position_embedding_type
        self.most = config.max_position_embeddings
        if position_embedding_type == "relative_key":
            self.distance = nn.Embedding(2 * self.most - 1, size // self.heads)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, hidden_states, attention_mask=None, past_key_value=None):
        q, k, v = (self.split(it(hidden_states)) for it in (self.query, self.key, self.value))
        if past_key_value is not None:
            k = torch.cat([past_key_value[0], k], dim=2)
            v = torch.cat([past_key_value[1], v], dim=2)
        scores = q @ k.mT
        if self.position_embedding_type == "relative_key":
            queries, keys = q.shape[2], k.shape[2]
            first = keys - queries if self.is_decoder else 0
            places = torch.arange(first, first + queries)[:, None] - torch.arange(keys)
            scores = scores + torch.einsum("bhld,lrd->bhlr", q, self.distance(places + self.most - 1))
        scores = scores * q.shape[-1] ** -0.5
        if attention_mask is not None:
            scores = scores + attention_mask
        context = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return (context, (k, v)) if self.is_decoder else context
"""


@pytest.mark.parametrize(
    ("first", "names"),
    [("keys - queries if self.is_decoder else 0", []), ("0", ["cache-mismatch"])],
)
def test_relative_positions_are_those_of_all_keys(tmp_path, first, names):
    source = RELATIVE.replace("keys - queries if self.is_decoder else 0", first)
    with written(tmp_path, source) as attention:
        report = check(attention)
    assert [it.name for it in report.bugs] == names, report


# Random numbers are added to the queries, so that no two numbers of tokens are comparable.
NOISY = """import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads=8):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, mask=None, cache=None):
        q, k, v = (it.unflatten(-1, (self.heads, -1)).transpose(1, 2) for it in self.qkv(x).chunk(3, -1))
        if cache is not None:
            k, v = torch.cat([cache[0], k], -2), torch.cat([cache[1], v], -2)
        q = q + torch.randn_like(q)
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(context.transpose(1, 2).flatten(2))
"""


def test_random_numbers_are_no_sign_of_a_wrong_cache(tmp_path):
    with written(tmp_path, NOISY) as attention:
        assert check(attention).bugs == ()
