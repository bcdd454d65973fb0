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


class OfNeighbors(nn.Module):
    """Attends over the neighbors of each point, by their features and directions."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(channels, channels), nn.Linear(channels, channels)
        self.value, self.direction = nn.Linear(channels, channels), nn.Linear(3, channels)

    def forward(self, rel_xyz, neigh, center):
        """Mix the neighbors.

        Args:
            rel_xyz: [B, S, K, 3]
            neigh: [B, S, K, C]
            center: [B, S, C]
        """
        B, S, K, _ = rel_xyz.shape
        key = self.key(neigh) + self.direction(rel_xyz)
        scores = (key @ self.query(center).view(B, S, -1, 1)).view(B, S, K)
        weights = torch.softmax(scores / key.shape[-1] ** 0.5, -1)
        return torch.einsum("bsk,bskc->bsc", weights, self.value(neigh))


class OfRatings(nn.Module):
    """Weighs the items of a history, each with its rating, for each candidate."""

    def __init__(self, item_width: int, rating_width: int = 8) -> None:
        super().__init__()
        self.rating = nn.Linear(1, rating_width)
        self.judge = nn.Sequential(
            nn.Linear(2 * item_width + rating_width, 16), nn.Tanh(), nn.Linear(16, 1)
        )

    def forward(self, candidates, items, ratings, real):
        """Return one vector for each candidate.

        candidates : [batch, N, dim]
        items      : [batch, L, dim]
        ratings    : [batch, L]
        real       : [batch, L] bool, True = a real item
        """
        n, l = candidates.shape[1], items.shape[1]
        rated = torch.cat([items, self.rating(ratings.unsqueeze(-1))], -1)
        pairs = torch.cat(
            [candidates[:, :, None].expand(-1, -1, l, -1), rated[:, None].expand(-1, n, -1, -1)], -1
        )
        scores = self.judge(pairs).squeeze(-1).masked_fill(~real[:, None], -1e9)
        return torch.softmax(scores, -1) @ items


class OfStatistics(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.score = nn.Conv1d(c, c, 1)

    def forward(self, h, mask):  # h (B,C,T), mask (B,1,T) float
        weights = torch.softmax(self.score(h).masked_fill(mask < 0.5, -1e9), dim=-1)
        return (weights * h).sum(-1)


class OfWindows(nn.Module):
    """Each frame attends to as many places of a text as the constructor says."""

    def __init__(self, dim: int, heads: int, window: int) -> None:
        super().__init__()
        self.query, self.bias = nn.Linear(dim, dim), nn.Parameter(torch.zeros(heads, window))
        self.heads = heads

    def forward(self, x, mem: tuple[torch.Tensor, torch.Tensor], places, real):
        B, T, C = x.shape
        H, W = self.heads, places.shape[-1]
        key, value = (
            it.gather(1, places.reshape(B, T * W, 1).expand(-1, -1, C)).view(B, T, W, H, C // H)
            for it in mem
        )
        query = self.query(x).view(B, T, H, C // H)
        scores = torch.einsum("bthd,btwhd->bthw", query, key) * (C // H) ** -0.5 + self.bias
        weights = scores.masked_fill(~real[:, :, None], -torch.inf).softmax(-1)
        return torch.einsum("bthw,btwhd->bthd", weights, value).flatten(2)


class OfEarlierWeights(nn.Module):
    """Scores places anew, by the weights of the step before, too."""

    def __init__(self, encoder_dim: int, decoder_dim: int) -> None:
        super().__init__()
        self.state, self.place = nn.Linear(decoder_dim, encoder_dim), nn.Linear(1, encoder_dim)

    def forward(self, decoder_hidden, encoder_outputs, prev_attention=None):
        query = self.state(decoder_hidden).unsqueeze(1)
        if prev_attention is not None:
            query = query + self.place(prev_attention.unsqueeze(-1))
        weights = torch.softmax((query * encoder_outputs).sum(-1), 1)
        return (weights[:, None] @ encoder_outputs).squeeze(1), weights


class OfAgents(nn.Module):
    """Each of as many agents as the constructor says attends to the others."""

    def __init__(self, obs_size: int, action_size: int, n_agents: int, torn: bool = False) -> None:
        super().__init__()
        self.n_agents, self.torn = n_agents, torn
        self.encode = nn.Linear(obs_size + action_size, 32)
        self.qkv, self.value = nn.Linear(32, 96), nn.Linear(32, 1)

    def forward(self, obs: Tensor, acts: Tensor) -> Tensor:
        """Return the value of each agent's action.

        Args:
            obs: what the agents see, (batch, n_agents, obs_size).
            acts: what they do, (batch, n_agents, action_size).
        """
        hidden = self.encode(torch.cat([obs, acts], dim=-1)).relu()
        query, key, value = self.qkv(hidden).view(len(obs), self.n_agents, 3, 4, 8).unbind(2)
        if not self.torn:
            query, key, value = (it.transpose(1, 2) for it in (query, key, value))
        context = (query @ key.mT / 8**0.5).softmax(-1) @ value
        if not self.torn:
            context = context.transpose(1, 2)
        return self.value(context.reshape(len(obs), self.n_agents, 32))
