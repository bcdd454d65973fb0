"""Designs of public projects that the check once blamed, or could not call."""

from __future__ import annotations

import pytest
import torch
from attentions_with_caches import written

from heedful import check

HEAD = """import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
"""
# The states of a recurrent layer are keys and values; nothing reads the lengths beside them.
RECURRENT = (
    HEAD
    + """
    def __init__(self, dim):
        super().__init__()
        self.embed, self.lstm = nn.Linear(dim, dim), nn.LSTM(dim, dim, batch_first=True)
        self.query = nn.Linear(dim, dim)

    def forward(self, x):
        lengths = torch.full((len(x),), x.shape[1])
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embed(x), lengths, batch_first=True, enforce_sorted=False
        )
        packed, _ = self.lstm(packed)
        output, _ = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
        scores = self.query(x) @ output.mT * x.shape[-1] ** -0.5
        return scores.softmax(-1) @ output
"""
)
# Queries are keys, so that a token sees itself only if there is no other one (Kitaev et al. 2020).
SHARED = (
    HEAD
    + """
    def __init__(self, dim):
        super().__init__()
        self.qk, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, T = self.qk(x), x.shape[1]
        scores = q @ F.normalize(q, dim=-1).mT * q.shape[-1] ** -0.5
        scores = scores.masked_fill(torch.eye(T, dtype=torch.bool), -5e4)
        later = torch.ones(T, T, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, torch.finfo(scores.dtype).min)
        return scores.softmax(-1) @ self.v(x)
"""
)
# A layer takes all tokens in a row.
ROW = (
    HEAD
    + """
    def __init__(self, input_dim=13, d_model=32, sequencelength=11, classes=9):
        super().__init__()
        self.inner, self.qkv = nn.Linear(input_dim, d_model), nn.Linear(d_model, 3 * d_model)
        self.outer = nn.Linear(sequencelength * d_model, classes)

    def forward(self, x):
        q, k, v = self.qkv(self.inner(x)).chunk(3, -1)
        return self.outer(F.scaled_dot_product_attention(q, k, v).flatten(1))
"""
)
# Cosines and sines are arguments of their own, with an axis for the heads behind that of the positions.
TABLES = (
    HEAD
    + """
    def __init__(self, n_embd, n_head=4):
        super().__init__()
        self.n_head, self.qkv = n_head, nn.Linear(n_embd, 3 * n_embd)

    def forward(self, x, cos_sin):
        cos, sin = cos_sin
        q, k, v = (it.unflatten(-1, (self.n_head, -1)) for it in self.qkv(x).chunk(3, -1))
        q, k = (self.turned(it, cos, sin) for it in (q, k))
        q, k, v = (it.transpose(1, 2) for it in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

    def turned(self, x, cos, sin):
        assert cos.dim() == 4 and cos.shape[1] == x.shape[1] and cos.shape[-1] == x.shape[-1] // 2
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos + second * sin, second * cos - first * sin], -1)
"""
)


@pytest.mark.parametrize(
    "source", [RECURRENT, SHARED, ROW, TABLES], ids=["recurrent", "shared", "row", "tables"]
)
def test_a_sound_design_is_called_and_has_no_bug(tmp_path, source):
    with written(tmp_path, source) as attention:
        report = check(attention)
    assert report.bugs == (), report


def test_the_shape_of_all_frames_tells_which_entries_belong_together(tmp_path):
    source = (
        HEAD
        + """
    def __init__(self, dim):
        super().__init__()
        self.mix = nn.Conv3d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x, shape):
        B, T, H, W = shape
        whole = x.view(B, H, W, T, -1).permute(0, 4, 3, 1, 2)
        return self.mix(whole).permute(0, 3, 4, 2, 1).reshape(x.shape)
"""
    )
    with written(tmp_path, source) as attention:
        report = check(attention(16), example=(torch.randn(18, 4, 16), (2, 4, 3, 3)))
    assert report.bugs == (), report
