"""Parameters that come in pairs, heads of keys in other numbers, and the lines of scales and gains."""

import pytest
from attentions_with_caches import written

from heedful import check

pytestmark = pytest.mark.slow

ADDITIVE = """import torch
from torch import nn


class Attention(nn.Module):
    '''Scores are sums of a number for the query and one for the key (Velickovic et al. 2018).'''

    def __init__(self, d_model=24):
        super().__init__()
        self.proj = nn.Linear(d_model, d_model)
        self.w_from = nn.Parameter(torch.randn(d_model, 1) / 5)
        self.w_to = nn.Parameter(torch.randn(d_model, 1) / 5)

    def forward(self, x):
        h = self.proj(x)
        f, t = h @ self.w_from, h @ self.w_to
        e = torch.tanh(f + t.transpose(1, 2))
        return e.softmax(-1) @ h
"""
GROUPED = """import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model=24, n_heads=4, n_kv_heads=2):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, d_model // n_heads
        self.wq = nn.Linear(d_model, d_model)
        self.wkv = nn.Linear(d_model, 2 * n_kv_heads * self.head_dim)

    def forward(self, x):
        B, T, C = x.shape
        q = self.wq(x).view(B, T, self.n_heads, self.head_dim).transpose(1, 2)
        kv = self.wkv(x).view(B, T, 2, self.n_kv_heads, self.head_dim)
        k, v = kv.permute(2, 0, 3, 1, 4)
        n_rep = self.n_heads // self.n_kv_heads
        k, v = k.repeat_interleave(n_rep, 1), v.repeat_interleave(n_rep, 1)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, C)
"""
SCALED = """import torch
from torch import nn


def weigh(q, k, scale=None):
    scores = q @ k.mT
    if scale is not None:
        scores = scores * scale
    return scores.softmax(dim=-1)


class Attention(nn.Module):
    def __init__(self, d_model=24, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.factor = (d_model // n_heads) ** -0.5
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x):
        qkv = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = qkv
        w = weigh(q, k, scale=self.factor)
        return (w @ v).transpose(1, 2).flatten(2)
"""


@pytest.mark.parametrize(
    ("source", "old", "new", "name", "line"),
    [
        (ADDITIVE, "h @ self.w_from, h @ self.w_to", "h @ self.w_from, h @ self.w_from", "projection-unused", "f, t ="),
        (ADDITIVE, "f, t = h @ self.w_from, h @ self.w_to", "f = t = h @ self.w_to", "projection-unused", "f = t"),
        (GROUPED, "self.n_heads // self.n_kv_heads", "self.n_kv_heads", "crashes", None),
        (SCALED, "weigh(q, k, scale=self.factor)", "weigh(q, k)", "scale-missing", "w = weigh(q, k)"),
        (SCALED, "(d_model // n_heads) ** -0.5", "d_model ** -0.5", "scale-wrong", "self.factor = "),
    ],
)  # fmt: skip
def test_the_bug_and_the_line_to_edit(tmp_path, source, old, new, name, line):
    with written(tmp_path, source) as target:
        assert check(target).bugs == ()
    assert source.count(old) == 1
    with written(tmp_path, source.replace(old, new)) as target:
        (bug,) = check(target).bugs
    assert bug.name == name
    assert line is None or (bug.place is not None and line in bug.place.source)
