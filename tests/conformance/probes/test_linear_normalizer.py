"""Linear attention: a query's weights, which are never formed, sum to 1 if the code divides by their sum."""

from __future__ import annotations

import pytest
from attentions_with_caches import written

from heedful import check

pytestmark = pytest.mark.slow

BIDIRECTIONAL = """
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, -1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        total = k.sum(dim=2)
        kv = torch.einsum("bhnd,bhne->bhde", k, v)
        z = torch.einsum("bhnd,bhd->bhn", q, total)
        out = torch.einsum("bhnd,bhde->bhne", q, kv) / (z[..., None] + 1e-6)
        return self.to_out(out.transpose(1, 2).reshape(b, n, d))
"""

CAUSAL = """
import torch
from torch import nn


def features(t):
    return torch.relu(t) + 1e-3


def causal_product(q, k, v):
    state = torch.zeros(*k.shape[:2], k.shape[-1], v.shape[-1], dtype=v.dtype)
    mass = torch.zeros_like(k[:, :, 0])
    rows = []
    for i in range(q.shape[2]):
        state = state + k[:, :, i, :, None] * v[:, :, i, None]
        mass = mass + k[:, :, i]
        rows.append((q[:, :, i, None] @ state).squeeze(2))
    masses = k.cumsum(2)
    normalizer = 1 / (q * masses).sum(-1, keepdim=True)
    return torch.stack(rows, 2) * normalizer


class Attention(nn.Module):
    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (
            layer(x).view(B, T, self.num_heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        out = causal_product(features(q), features(k), v)
        return out.transpose(1, 2).reshape(B, T, C)
"""

WRONG = [
    (BIDIRECTIONAL, "k.sum(dim=2)", "k.sum(dim=2).softmax(-1)", "total = k.sum(dim=2)"),
    (BIDIRECTIONAL, '"bhnd,bhd->bhn", q, total', '"bhnd,bhd->bhn", k, total', "total = k.sum"),
    (CAUSAL, "k.cumsum(2)", "k.cumsum(1)", "masses = k.cumsum(1)"),
    (CAUSAL, "1 / (q * masses).sum", "(q * masses).sum", "masses = k.cumsum(2)"),
]


@pytest.mark.parametrize(("source", "old", "new", "line"), WRONG)
def test_a_wrong_normalizer_is_named(tmp_path, source, old, new, line):
    with written(tmp_path, source.replace(old, new)) as target:
        (bug,) = check(target).bugs
    assert bug.name == "rows-not-normalised"
    assert bug.place.source.startswith(line)


OFTEN_ZERO = CAUSAL.replace("torch.relu(t) + 1e-3", "torch.relu(t - 1)").replace(
    "sum(-1, keepdim=True)", "sum(-1, keepdim=True).clamp(min=1e-6)"
)


@pytest.mark.parametrize(
    "source",
    [
        BIDIRECTIONAL,
        CAUSAL,
        BIDIRECTIONAL.replace(" / (z[..., None] + 1e-6)", ""),
        BIDIRECTIONAL.replace("z[..., None] + 1e-6", "n * d"),
        BIDIRECTIONAL.replace("k, v)", "k, v / n)").replace("+ 1e-6)", "+ 1e-6) * n"),
        CAUSAL.replace("torch.relu(t) + 1e-3", "torch.relu(t) + 1e-6"),
        OFTEN_ZERO,
    ],
    ids=[
        "right",
        "right, causal",
        "no normalizer",
        "a constant",
        "divided values",
        "near 0",
        "often 0",
    ],
)
def test_a_right_normalizer_or_none_is_no_bug(tmp_path, source):
    with written(tmp_path, source) as target:
        assert not check(target).bugs


CUMULATIVE = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads=4, causal=False):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, -1))
        q, k = torch.exp(q), torch.exp(k)
        if not self.causal:
            z = 1 / torch.einsum("bhnd,bhd->bhn", q, k.sum(2))
            out = torch.einsum("bhnd,bhde,bhn->bhne", q, k.mT @ v, z)
        else:
            total = k.cumsum(2)
            context = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(2)
            WEIGHTED
        return self.to_out(out.transpose(1, 2).reshape(b, n, d))
"""
RIGHT = """z = 1 / (q * total).sum(-1)
            out = torch.einsum("bhnde,bhnd,bhn->bhne", context, q, z)"""
ONE_BY_ONE = """context = context / total[..., None]
            out = torch.einsum("bhnde,bhnd->bhne", context, q)"""


@pytest.mark.parametrize(
    ("weighted", "names"),
    [
        (RIGHT, []),
        (ONE_BY_ONE, ["rows-not-normalised"]),
        (ONE_BY_ONE.replace("context, q)", "context, q / q.sum(-1, True))"), []),
    ],
)
def test_queries_weight_sums_of_keys_that_are_divided_one_by_one(tmp_path, weighted, names):
    with written(tmp_path, CUMULATIVE.replace("WEIGHTED", weighted)) as target:
        bugs = check(target).bugs
    assert [it.name for it in bugs] == names
    assert all(it.place.source.startswith("context = context / total") for it in bugs)


MONOTONIC = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, enc_dim=10, dec_dim=12):
        super().__init__()
        self.W, self.V, self.v = nn.Linear(enc_dim, 8), nn.Linear(dec_dim, 8), nn.Linear(8, 1)

    def forward(self, encoder_outputs, decoder_h):
        '''
        Args:
            encoder_outputs: [batch_size, sequence_length, enc_dim]
            decoder_h: [batch_size, dec_dim]
        '''
        B, T, _ = encoder_outputs.shape
        energy = self.v(torch.tanh(self.W(encoder_outputs) + self.V(decoder_h)[:, None])).squeeze(-1)
        chosen = energy.sigmoid()
        before = torch.zeros(B, T)
        before[:, 0] = 1.0
        left = torch.cat([torch.ones(B, 1), 1 - chosen], dim=1)[:, :-1]
        left = left.clamp(1e-10, 1).log().cumsum(1).exp()
        alpha = chosen * left * (before / left.clamp(min=1e-10)).cumsum(1)
        return (alpha[:, None] @ encoder_outputs).squeeze(1)
"""


def test_a_layer_of_a_state_and_one_of_scores_make_no_values(tmp_path):
    with written(tmp_path, MONOTONIC) as target:
        assert "rows-not-normalised" not in {it.name for it in check(target).findings}
