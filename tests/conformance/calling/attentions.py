"""Attention modules of every calling convention, which the tests of several files share."""

from __future__ import annotations

import torch
from torch import nn

from heedful.gpt.model import GPT

BATCH_FIRST, TOKENS_FIRST, UNBATCHED, IDS = "(B, T, C)", "(T, B, C)", "(T, C)", "(B, T) ids"
HEADS_FIRST, HEADS_LAST = "(B, H, T, D)", "(B, T, H, D)"


def attend(query, key, value, hidden=None):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores.softmax(-1) @ value


class Projected(nn.Module):
    """A single head without masks or caches, which subclasses add."""

    def __init__(self, d_model):
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def split(self, x):
        return self.qkv(x).chunk(3, dim=-1)

    def forward(self, x):
        return attend(*self.split(x))


class TokensFirst(Projected):
    def forward(self, x):
        T, B, C = x.shape
        q, k, v = (it.transpose(0, 1) for it in self.split(x))
        return attend(q, k, v).transpose(0, 1).reshape(T, B, C)


class Wrapped(nn.Module):
    """Wraps a layer from torch that takes tokens first, and declares nothing itself."""

    def __init__(self, d_model, nhead):
        super().__init__()
        self.attention = nn.MultiheadAttention(d_model, nhead)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class WrongLayout(Wrapped):
    """Wraps the same layer, but assumes batches first: a bug that the check should find."""

    def forward(self, x):
        B, T, C = x.shape
        return self.attention(x, x, x)[0].reshape(B, T, C)


class Unbatched(Projected):
    def forward(self, x):
        q, k, v = self.split(x)
        return (q @ k.transpose(0, 1)).softmax(-1) @ v


class Weighted(Projected):
    """Stores its last weights, and returns them beside the output."""

    def __init__(self, d_model):
        super().__init__(d_model)
        self.last = [torch.zeros(1)]

    def forward(self, x):
        q, k, v = self.split(x)
        weights = (q @ k.mT).softmax(-1)
        self.last = [weights]
        return weights @ v, weights


class Rotary(Projected):
    """Has a table of rotary angles as complex numbers, and a softmax in float32."""

    def __init__(self, d_model, max_seq_len):
        super().__init__(d_model)
        angles = torch.arange(max_seq_len)[:, None] / 10 ** torch.arange(d_model // 2)
        self.register_buffer("rotations", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x):
        q, k, v = self.split(x)
        rotations = self.rotations[: x.shape[1]]
        q, k = (
            torch.view_as_real(
                torch.view_as_complex(it.unflatten(-1, (-1, 2)).contiguous()) * rotations
            )
            for it in (q, k)
        )
        scores = q.flatten(-2) @ k.flatten(-2).mT
        return scores.float().softmax(-1).type_as(v) @ v


class Misspelt(Projected):
    def forward(self, x):
        q, k, v = self.split(x)  # noqa: RUF059
        return (q @ kk.mT).softmax(-1) @ v  # noqa: F821


def causal_with(q, k, v):
    T, S = q.shape[-2], k.shape[-2]
    return attend(q, k, v, torch.ones(T, S, dtype=torch.bool).triu(S - T + 1))


class Slots(Projected):
    """Keeps keys and values in its own slots, and takes a start position."""

    def __init__(self, dim, max_batch_size, max_seq_len):
        super().__init__(dim)
        for name in ("k_cache", "v_cache"):
            self.register_buffer(name, torch.zeros(max_batch_size, max_seq_len, dim))

    def forward(self, x, start_pos=0):
        q, k, v = self.split(x)
        B, stop = x.shape[0], start_pos + x.shape[1]
        self.k_cache[:B, start_pos:stop], self.v_cache[:B, start_pos:stop] = k, v
        return causal_with(q, self.k_cache[:B, :stop], self.v_cache[:B, :stop])


def small_gpt(family):
    sizes = {"vocab_size": 19, "context_length": 16, "d_model": 12, "num_layers": 2, "num_heads": 2}
    return GPT(family(**sizes, num_kv_heads=1, d_mlp=20))
