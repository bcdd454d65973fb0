"""Modules whose arguments have shapes that neither names nor documentation tell."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Scored(nn.Module):
    """Sums what a user has seen by scores of a perceptron: one item (B, 1, C), a history (B, T, C), kept (B, T, 1)."""

    def __init__(self, embedding_dim: int) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(4 * embedding_dim, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, item: Tensor, history: Tensor, kept: Tensor) -> Tensor:
        items = torch.cat([item] * history.shape[1], dim=1)
        pairs = torch.cat([items, history, items - history, items * history], dim=-1)
        return (history * (self.score(pairs) * kept)).sum(dim=1)


class Unweighed(Scored):
    """The same, but for the last line: it sums the history as it is."""

    def forward(self, item: Tensor, history: Tensor, kept: Tensor) -> Tensor:
        items = torch.cat([item] * history.shape[1], dim=1)
        pairs = torch.cat([items, history, items - history, items * history], dim=-1)
        output = history * (self.score(pairs) * kept)
        output = history.sum(dim=1)
        return output  # noqa: RET504 - the line before is the bug


class Turned(nn.Module):
    """Self-attention whose tables of angles must have one row for each token, and one column for each pair."""

    def __init__(self, dim: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor, table_cos: Tensor, table_sin: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        assert table_cos.shape == table_sin.shape == (n, c // self.heads // 2)
        q, k = turned(q, table_cos, table_sin), turned(k, table_cos, table_sin)
        weights = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(dim=-1)
        return (weights @ v).transpose(1, 2).reshape(b, n, c)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs of features."""
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


class OfMaps(nn.Module):
    """Tokens z (B, M, D) attend to the pixels of a map x (B, C, H, W)."""

    def __init__(self, dim: int, channels: int) -> None:
        super().__init__()
        self.query = nn.Linear(dim, channels)
        self.out = nn.Linear(channels, dim)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        pixels = self.pixels(x)
        scores = self.query(z) @ pixels.transpose(1, 2) / pixels.shape[-1] ** 0.5
        return z + self.out(scores.softmax(dim=-1) @ pixels)

    def pixels(self, x: Tensor) -> Tensor:
        """Return the pixels of a map as rows."""
        b, c, h, w = x.shape
        return x.view(b, c, h * w).transpose(1, 2)


class OfTornMaps(OfMaps):
    """The same with a view that tears the pixels."""

    def pixels(self, x: Tensor) -> Tensor:
        """Return rows of mixed pixels."""
        b, c, h, w = x.shape
        return x.view(b, h * w, c)


class Misspelled(OfMaps):
    """The same with a method that no tensor has, behind the line that needs a map."""

    def pixels(self, x: Tensor) -> Tensor:
        """Return the pixels of a map as rows."""
        b, c, h, w = x.shape
        return x.view(b, c, h * w).premute(0, 2, 1)  # pyright: ignore[reportAttributeAccessIssue]


class OfThreeWidths(nn.Module):
    """The queries come from one sequence, the keys and values from two others, of other widths; the split may tear."""

    def __init__(self, torn: bool) -> None:
        super().__init__()
        self.torn = torn
        self.query, self.key, self.value = nn.Linear(16, 24), nn.Linear(24, 24), nn.Linear(8, 24)

    def forward(self, s: Tensor, t: Tensor, u: Tensor) -> Tensor:
        q, k, v = self.query(s), self.key(t), self.value(u)
        q = q.view(*q.shape[:2], 4, 6).transpose(1, 2)
        k, v = (self.split(it) for it in (k, v))
        context = (q @ k.transpose(-2, -1) / 6**0.5).softmax(dim=-1) @ v
        return context.transpose(1, 2).flatten(2)

    def split(self, x: Tensor) -> Tensor:
        """Return the heads of keys or values."""
        b, n, _ = x.shape
        return x.reshape(b, 4, n, 6) if self.torn else x.view(b, n, 4, 6).transpose(1, 2)


class Joined(nn.Module):
    """Turns the signs of scores by a tensor for each pair of tokens, whose role nothing tells, and adds a vector."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x: Tensor, thing: Tensor, other: Tensor) -> Tensor:
        b, n, c = x.shape
        assert thing.shape == (b, n, n, c)
        assert other.shape == (b, 1, c)
        scores = self.query(x + other) @ self.key(x).transpose(-2, -1) / c**0.5
        scores = torch.where(thing[..., 0] > 0, scores, -scores)
        return scores.softmax(dim=-1) @ self.value(x)


class OfLastState(nn.Module):
    """Weighs the states of an encoder (B, T, C) by products with the last state (L, B, C) of a recurrent layer."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.project, self.join = nn.Linear(size, size), nn.Linear(2 * size, size)

    def forward(self, xes: Tensor, hidden: Tensor, attn_params: tuple[Tensor, Tensor]) -> Tensor:
        last = self.project(hidden[-1]).unsqueeze(1)
        states, real = attn_params
        assert last.shape[0] == states.shape[0]
        scores = (last @ states.mT).squeeze(1).masked_fill(~real, -torch.inf)
        context = (scores.softmax(-1).unsqueeze(1) @ states).squeeze(1)
        return self.join(torch.cat([xes.squeeze(1), context], 1)).unsqueeze(1)
