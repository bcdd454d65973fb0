"""Masks that code takes from 1, lists of lengths, tables that nothing reads, and orders of axes and of positions."""

from __future__ import annotations

import pytest
from attentions_with_caches import written

from heedful import check

pytestmark = pytest.mark.slow

HEAD = """import math

import torch
import torch.nn.functional as F
from torch import nn

"""
# A mask of 1 and 0, of a name that tells little.
SHARED_KEYS = (
    HEAD
    + """
class Attention(nn.Module):
    def __init__(self, hidden_size=32, num_heads=4):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.q = nn.Linear(hidden_size, hidden_size)
        self.k, self.v = nn.Linear(hidden_size, self.head_dim), nn.Linear(hidden_size, self.head_dim)

    def forward(self, hidden, mask_attention=None):
        B, T, _ = hidden.shape
        q = self.q(hidden).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        scores = q @ self.k(hidden)[:, None].mT / self.head_dim**0.5
        if mask_attention is not None:
            scores += (1 - mask_attention) * -1e9
        return (scores.softmax(-1) @ self.v(hidden)[:, None]).transpose(1, 2).flatten(2)
"""
)
WINDOW = (
    HEAD
    + """
class Attention(nn.Module):
    def __init__(self, dim=24, window_size=(2, 2), num_heads=4):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)
        rows = (2 * window_size[0] - 1) * (2 * window_size[1] - 1)
        self.relative_position_bias_table = nn.Parameter(torch.zeros(rows, num_heads))
        nn.init.normal_(self.relative_position_bias_table, std=0.02)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        weights = ((q @ k.mT) * self.scale).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(B, N, C))
"""
)
# The session model of recommenders counts positions from the last item.
FROM_THE_END = (
    HEAD
    + """
class Attention(nn.Module):
    def __init__(self, n_items=50, dim=24, max_len=32):
        super().__init__()
        self.items, self.pos = nn.Embedding(n_items, dim), nn.Embedding(max_len, dim)
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, items):
        positions = torch.arange(items.shape[1] - 1, -1, -1)
        q, k, v = self.qkv(self.items(items) + self.pos(positions)).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
"""
)
OF_ONE_LENGTH = (
    HEAD
    + """
class Attention(nn.Module):
    def __init__(self, dim=24, context_length=8):
        super().__init__()
        self.context_length, self.qkv = context_length, nn.Linear(dim, 3 * dim)
        self.register_buffer("mask", torch.ones(context_length, context_length).tril())

    def forward(self, x):
        assert x.shape[1] == self.context_length, x.shape
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return scores.masked_fill(self.mask == 0, float("-inf")).softmax(-1) @ v
"""
)
# Heads are the last axis of the scores and come second in the weights; the docstring adds a memory to the tokens.
HEADS_LAST = (
    HEAD
    + '''
class Attention(nn.Module):
    def __init__(self, dim=24, heads=4):
        super().__init__()
        self.heads, self.d = heads, dim // heads
        self.w_key, self.w_value = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.w_query, self.w_pos = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, key, query, pos_embs, mask):
        """Attend.

        Args:
            key (FloatTensor): `[B, mlen+qlen, kdim]`
            query (FloatTensor): `[B, qlen, qdim]`
            pos_embs (FloatTensor): `[mlen+qlen, 1, d_model]`
            mask (ByteTensor): `[B, qlen, mlen+qlen]`
        """
        B, T = query.size()[:2]
        k, v = (it.view(B, -1, self.heads, self.d) for it in (self.w_key(key), self.w_value(key)))
        q = self.w_query(key[:, -T:]).view(B, -1, self.heads, self.d)
        pos = self.w_pos(pos_embs).view(-1, self.heads, self.d)
        scores = torch.einsum("bihd,bjhd->bijh", q, k) + torch.einsum("bihd,jhd->bijh", q, pos)
        scores = scores / self.d**0.5
        if mask is not None:
            assert mask.size() == (B, T, key.size(1))
            scores = scores.masked_fill(mask.unsqueeze(3) == 0, torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, dim=2).permute(0, 3, 1, 2)
        return torch.einsum("bhij,bjhd->bihd", weights, v).reshape(B, T, -1)
'''
)
# The captions of all samples are packed into one sequence.
PACKED = (
    HEAD
    + '''
class Attention(nn.Module):
    """The captions are packed; mask holds the number of tokens of every sample."""

    def __init__(self, d_model=24, num_heads=4):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.q, self.kv = nn.Linear(d_model, d_model), nn.Linear(d_model, 2 * d_model)

    def forward(self, x, cond, mask=None):
        B, N, C = x.shape
        q = self.q(x).view(1, -1, self.num_heads, self.head_dim).transpose(1, 2)
        k, v = self.kv(cond).view(1, -1, 2, self.num_heads, self.head_dim).transpose(1, 3).unbind(2)
        allowed = None
        if mask is not None and len(mask) > 1:
            allowed, start = torch.zeros(q.shape[2], k.shape[2], dtype=torch.bool), 0
            for n, length in enumerate(mask):
                allowed[n * N : (n + 1) * N, start : start + length] = True
                start += length
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return x.transpose(1, 2).reshape(B, -1, C)
'''
)
TWO_SHAPES = (
    HEAD
    + '''
class Attention(nn.Module):
    def __init__(self, dim=24, num_heads=4):
        super().__init__()
        self.num_heads, self.qkv = num_heads, nn.Linear(dim, 3 * dim)

    def forward(self, x, mask=None):
        """
        Inputs:
            x - Features of shape [Batch, SeqLen, Dim]
            mask - Allowed positions (1), of shape [SeqLen, SeqLen] or [Batch, SeqLen, SeqLen]
        """
        B, T, C = x.shape
        q, k, v = self.qkv(x).reshape(B, T, self.num_heads, -1).permute(0, 2, 1, 3).chunk(3, -1)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            if mask.dim() == 3:
                mask = mask.unsqueeze(1)
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return (scores.softmax(-1) @ v).permute(0, 2, 1, 3).reshape(B, T, C)
'''
)
# One tensor is queries, keys and values, and nothing is projected.
ALIGNED = (
    HEAD
    + """
class Attention(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()

    def forward(self, inputs, masks):
        scores = torch.bmm(inputs, inputs.transpose(1, 2))
        scores.masked_fill_(~masks.unsqueeze(1), float("-inf"))
        return torch.bmm(F.softmax(scores, dim=-1), inputs)
"""
)
# The probability has the name of the function that takes it.
PROBABILITY = (
    HEAD
    + """
class Attention(nn.Module):
    def __init__(self, model_dim, dropout_prob):
        super().__init__()
        self.qkv, self.dropout = nn.Linear(model_dim, 3 * model_dim), dropout_prob

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return F.dropout(weights, p=self.dropout, training=self.training) @ v
"""
)
BUGS = [
    (SHARED_KEYS, "* -1e9", "* -1e-9", "mask-fill-too-small", "* -1e-9"),
    (
        TWO_SHAPES,
        "            if mask.dim() == 3:\n                mask = mask.unsqueeze(1)\n",
        "",
        "mask-broadcast",
        "scores = scores.masked_fill(mask",
    ),
]
SOUND = {
    "a mask taken from 1": SHARED_KEYS,
    "positions from the end": FROM_THE_END,
    "one length": OF_ONE_LENGTH,
    "heads last": HEADS_LAST,
    "packed captions": PACKED,
    "two shapes of a mask": TWO_SHAPES,
    "plain tokens": ALIGNED,
    "a probability": PROBABILITY,
}


def bugs_of(tmp_path, source):
    with written(tmp_path, source) as target:
        return check(target).bugs


@pytest.mark.parametrize(
    ("source", "old", "new", "name", "line"), BUGS, ids=[bug[3] for bug in BUGS]
)
def test_the_bug_is_named_with_its_line(tmp_path, source, old, new, name, line):
    wrong = source.replace(old, new)
    assert wrong != source
    (bug,) = bugs_of(tmp_path, wrong)
    assert (bug.name, line in bug.place.source) == (name, True)


@pytest.mark.parametrize("source", SOUND.values(), ids=SOUND)
def test_the_design_is_no_bug(tmp_path, source):
    assert not bugs_of(tmp_path, source)


def test_a_table_of_positions_that_only_a_constructor_reads_is_unused(tmp_path):
    (bug,) = bugs_of(tmp_path, WINDOW)
    assert bug.name == "projection-unused"
    assert "self.relative_position_bias_table = " in bug.place.source
    read = (
        WINDOW.replace("* self.scale)", "* self.scale + self.bias())")
        + """
    def bias(self):
        return self.relative_position_bias_table.mean(0)[:, None, None]
"""
    )
    assert not bugs_of(tmp_path, read)
