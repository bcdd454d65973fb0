"""What classes of strangers taught: sound ones that were blamed, and mistakes that went unseen."""

from __future__ import annotations

import pytest
from attentions_with_caches import written

from heedful import check

pytestmark = pytest.mark.slow

HEAD = """import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
"""
ATTEND = """
    def attend(self, q, k, v):
        return (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(dim=-1) @ v
"""
NODES = (
    HEAD
    + ATTEND
    + """
    def __init__(self, channels: int, num_nodes: int):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(channels, channels) for _ in range(3))
        self.norm = nn.LayerNorm([num_nodes, channels])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        '''x: [batch_size, seq_len, num_nodes, channels]'''
        batch_size, seq_len, num_nodes, _ = x.shape
        return self.norm(x + self.attend(self.q(x), self.k(x), self.v(x)))
"""
)
SLOTS = (
    HEAD
    + ATTEND
    + """
    def __init__(self, d_model: int, state_dim: int):
        super().__init__()
        self.q, self.out = nn.Linear(d_model, state_dim), nn.Linear(state_dim, d_model)
        self.k, self.v = nn.Linear(state_dim, state_dim), nn.Linear(state_dim, state_dim)

    def forward(self, h, state, attention_mask=None):
        out = self.out(self.attend(self.q(h), self.k(state), self.v(state)))
        return out if attention_mask is None else out * attention_mask.to(out.dtype)[..., None]
"""
)
PITCHES = (
    HEAD
    + """
    def __init__(self, vocab_size, dim=24, classes=12):
        super().__init__()
        self.embedding, self.classes = nn.Embedding(vocab_size, dim), nn.Embedding(classes, dim)
        self.lstm = nn.LSTM(dim, dim, batch_first=True)
        self.k, self.v, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, vocab_size)

    def forward(self, x, melody_features):
        '''x: (batch_size, seq_len); melody_features: (batch_size, 12)'''
        hidden, _ = self.lstm(self.embedding(x))
        keys, values = self.k(self.classes.weight), self.v(self.classes.weight)
        scores = hidden @ keys.T / keys.shape[-1] ** 0.5 + torch.log(melody_features + 1e-8)[:, None]
        return self.out(hidden + scores.softmax(dim=-1) @ values)
"""
)
WINDOWS = (
    HEAD
    + ATTEND
    + """
    def __init__(self, dim: int, window_size):
        super().__init__()
        self.window_size = tuple(window_size)
        depth, height, width = self.window_size
        self.position = nn.Parameter(torch.randn(depth * height * width, dim))
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        return self.attend(*self.qkv(x + self.position).chunk(3, dim=-1))
"""
)
POOLING = (
    HEAD
    + """
    def __init__(self, channels: int):
        super().__init__()
        self.attention = nn.Sequential(nn.Conv1d(2 * channels, channels, 1), nn.Softmax(dim=2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.attention(torch.cat([x, x.std(dim=2, keepdim=True).expand_as(x)], dim=1))
        return (x * weights).sum(dim=2)
"""
)
COMMENTED = (
    HEAD
    + """
    def __init__(self, dim, drop_p=0.1):
        super().__init__()
        self.qkv, self.out, self.drop = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), nn.Dropout(drop_p)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        weights = (q @ k.transpose(1, 2) * q.shape[-1] ** -0.5).softmax(dim=-1)
        context = self.drop(weights @ v)  # multiply weights by values and apply dropout
        return self.out(context)
"""
)
MASKED_TWICE = (
    HEAD
    + """
    def __init__(self, dim):
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, src_key_padding_mask=None):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5
        if src_key_padding_mask is not None:
            scores = scores.masked_fill(src_key_padding_mask[:, None] == 0, float("-inf"))
            scores = scores.masked_fill(src_key_padding_mask[..., None] == 0, float("-inf"))
        return self.out(torch.nan_to_num(scores.softmax(dim=-1), nan=0.0) @ v)
"""
)


@pytest.mark.parametrize(
    "source", [NODES, SLOTS, PITCHES, WINDOWS, POOLING, COMMENTED, MASKED_TWICE]
)
def test_a_sound_design_has_no_bug(tmp_path, source):
    with written(tmp_path, source) as target:
        assert [it.name for it in check(target).bugs] == []


def test_a_mask_that_hides_rows_and_keys_alike_is_inverted_and_masks_before_the_softmax(tmp_path):
    with written(tmp_path, MASKED_TWICE) as target:
        assert "mask-inverted" in {it.name for it in check(target).findings}


RESIDUAL = (
    HEAD
    + """
    def __init__(self, dim, dropout=0.1):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(dim), nn.Dropout(dropout)
        self.attention = nn.MultiheadAttention(dim, 4, batch_first=True)

    def forward(self, x):
        residual = x
        x = self.norm(x)
        x, _ = self.attention(x, x, x)
        SUM
        return x
"""
)


@pytest.mark.parametrize(
    ("right", "wrong", "name"),
    [
        ("x = self.dropout(x) + residual", "self.dropout(x) + residual", "context-wrong"),
        ("x = self.dropout(x)", "self.dropout(x)", "dropout-unused"),
        ("x = self.norm(x)", "self.norm(x)", "projection-unused"),
    ],
)
def test_a_result_that_nothing_takes_is_found(tmp_path, right, wrong, name):
    with written(tmp_path, RESIDUAL.replace("SUM", right)) as target:
        assert [it.name for it in check(target).bugs] == []
    with written(tmp_path, RESIDUAL.replace("SUM", wrong)) as target:
        found = {it.name: it.place.source for it in check(target).bugs}
    assert found[name] == wrong


STEP = (
    HEAD
    + """
    def __init__(self, dim):
        super().__init__()
        self.embed, self.out = nn.Linear(dim, dim), nn.Linear(2 * dim, dim)

    def forward(self, hidden, memory):
        '''hidden: (batch, dim), memory: (batch, time, dim)'''
        batch, dim = hidden.shape
        turned = memory.transpose(1, 2)
        weights = (self.embed(hidden)[:, None] @ turned / dim**0.5).softmax(dim=-1)
        context = (weights * turned).sum(dim=-1)
        return self.out(torch.cat([hidden, context], dim=-1))
"""
)
SHIFTED = (
    HEAD
    + """
    def __init__(self, dim):
        super().__init__()
        self.qkv, self.positions = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, pos):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        by_distance = q @ self.positions(pos).transpose(1, 2)
        B, T, _ = by_distance.shape
        shifted = F.pad(by_distance, (1, 0)).view(B, T + 1, T)[:, 1:].reshape(B, T, T)
        return ((q @ k.transpose(1, 2) + shifted) * q.shape[-1] ** -0.5).softmax(dim=-1) @ v
"""
)
# XLNet has positions on both sides, and needs no padding.
SHIFTED_BY_ONE_LESS = SHIFTED.replace(
    "def forward(self, x, pos):",
    """def forward(self, x):
        places = torch.arange(2 * x.shape[1])[:, None]
        pos = torch.sin(places / torch.arange(1, 1 + x.shape[2])).expand(len(x), -1, -1)""",
).replace(
    "F.pad(by_distance, (1, 0)).view(B, T + 1, T)[:, 1:].reshape(B, T, T)",
    "by_distance.view(B, 2 * T, T)[:, 1:].reshape(B, T, 2 * T - 1)[..., :T]",
)


def test_a_view_that_tears_axes_apart_is_found(tmp_path):
    with written(tmp_path, STEP) as target:
        assert [it.name for it in check(target).bugs] == []
    torn = "turned = memory.view(batch, dim, -1)"
    with written(tmp_path, STEP.replace("turned = memory.transpose(1, 2)", torn)) as target:
        found = {it.name: it.place.source for it in check(target).findings}
    assert found["heads-mixed-split"] == torn


@pytest.mark.parametrize("source", [SHIFTED, SHIFTED_BY_ONE_LESS])
def test_the_shift_of_relative_positions_tears_nothing_apart(tmp_path, source):
    with written(tmp_path, source) as target:
        assert "heads-mixed-split" not in {it.name for it in check(target).findings}


def test_a_result_that_nothing_takes_is_found_where_no_call_works(tmp_path):
    uncallable = RESIDUAL.replace("def forward(self, x):", "def forward(self, x, scene):").replace(
        "residual = x", "residual = x + scene.lanes(x).features"
    )
    with written(tmp_path, uncallable.replace("SUM", "self.dropout(x) + residual")) as target:
        found = {it.name: it.place.source for it in check(target).bugs}
    assert found["context-wrong"] == "self.dropout(x) + residual"
