"""Swin attention over gridded observations, with any number of grid dimensions (time, latitude, longitude)."""

import itertools
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


class PreNorm(nn.Module):
    def __init__(self, dim: int, fn: nn.Module):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fn = fn

    def forward(self, x: torch.Tensor, **kwargs) -> torch.Tensor:
        return self.fn(self.norm(x), **kwargs)


class MultiHeadSelfAttention(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int, head_dim: int, p_dropout: float = 0.0):
        super().__init__()
        inner_dim = head_dim * num_heads
        self.num_heads = num_heads
        self.p_dropout = p_dropout
        self.to_qkv = nn.Linear(embed_dim, 3 * inner_dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, embed_dim), nn.Dropout(p_dropout))

    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """x: (..., n, d), mask: (..., n, n), True where a query may attend."""
        q, k, v = (
            t.unflatten(-1, (self.num_heads, -1)).transpose(-2, -3)
            for t in self.to_qkv(x).chunk(3, dim=-1)
        )
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=None if mask is None else mask.unsqueeze(-3),
            dropout_p=self.p_dropout if self.training else 0.0,
        )
        return self.to_out(out.transpose(-2, -3).flatten(-2))


def get_padding(grid_shape: tuple[int, ...], window_sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple((w - n % w) % w for n, w in zip(grid_shape, window_sizes))


def get_padding_tuple(padding: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """How much to pad before and after the grid, for each of its dimensions."""
    return tuple((p // 2, p - p // 2) for p in padding)


def add_padding(x: torch.Tensor, padding: tuple[int, ...]) -> torch.Tensor:
    """x: (m, *grid, d)."""
    padding_tuple = get_padding_tuple(padding)
    # before
    padding_tuple = tuple(itertools.chain(*padding_tuple))
    # after
    padding_tuple = tuple(itertools.chain(*reversed(padding_tuple)))
    # end
    return F.pad(x, (0, 0, *padding_tuple))


def remove_padding(x: torch.Tensor, padding: tuple[int, ...]) -> torch.Tensor:
    for i, (before, after) in enumerate(get_padding_tuple(padding), 1):
        x = x.narrow(i, before, x.shape[i] - before - after)
    return x


def window_partition(x: torch.Tensor, window_sizes: tuple[int, ...]) -> torch.Tensor:
    """(m, *grid, d) -> (m, windows, tokens of a window, d)."""
    dims = len(window_sizes)
    split = itertools.chain(*((n // w, w) for n, w in zip(x.shape[1:-1], window_sizes)))
    x = x.reshape(x.shape[0], *split, x.shape[-1])
    numbers, inside = range(1, 2 * dims, 2), range(2, 2 * dims + 1, 2)
    x = x.permute(0, *numbers, *inside, 2 * dims + 1)
    return x.flatten(1 + dims, 2 * dims).flatten(1, dims)


def window_reverse(
    windows: torch.Tensor, window_sizes: tuple[int, ...], grid_shape: tuple[int, ...]
) -> torch.Tensor:
    dims = len(window_sizes)
    counts = [n // w for n, w in zip(grid_shape, window_sizes)]
    x = windows.reshape(windows.shape[0], *counts, *window_sizes, windows.shape[-1])
    order = itertools.chain(*((1 + i, 1 + dims + i) for i in range(dims)))
    return x.permute(0, *order, 2 * dims + 1).reshape(-1, *grid_shape, windows.shape[-1])


class SWINAttentionLayer(nn.Module):
    """Attention within windows, and then within windows that are shifted by half their size."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        head_dim: int,
        feedforward_dim: int,
        window_sizes: tuple[int, ...],
        shift_sizes: Optional[tuple[int, ...]] = None,
        p_dropout: float = 0.0,
    ):
        super().__init__()
        if shift_sizes is None:
            shift_sizes = tuple(w // 2 for w in window_sizes)
        self.window_sizes = tuple(window_sizes)
        self.shift_sizes = tuple(shift_sizes)
        self.attns = nn.ModuleList(
            PreNorm(embed_dim, MultiHeadSelfAttention(embed_dim, num_heads, head_dim, p_dropout))
            for _ in range(2)
        )
        self.ff_blocks = nn.ModuleList(
            PreNorm(
                embed_dim,
                nn.Sequential(
                    nn.Linear(embed_dim, feedforward_dim),
                    nn.GELU(),
                    nn.Linear(feedforward_dim, embed_dim),
                    nn.Dropout(p_dropout),
                ),
            )
            for _ in range(2)
        )

    def _mask(
        self, real: torch.Tensor, padding: tuple[int, ...], shifts: tuple[int, ...]
    ) -> torch.Tensor:
        """Hide padding, and what is next to a token only because the grid was rolled."""
        real = add_padding(real, padding)
        region = torch.zeros_like(real, dtype=torch.long)
        for i, (_w, s) in enumerate(zip(self.window_sizes, shifts), 1):
            n = real.shape[i]
            place = torch.arange(n, device=real.device)
            shape = [1] * real.dim()
            shape[i] = n
            region = 2 * region + ((place >= n - s) & (s > 0)).long().view(shape)
        real = real.roll([-s for s in shifts], dims=list(range(1, 1 + len(shifts))))
        real = window_partition(real, self.window_sizes).squeeze(-1)
        region = window_partition(region, self.window_sizes).squeeze(-1)
        same = region.unsqueeze(-1) == region.unsqueeze(-2)
        # What padding sees is cut off afterwards, but it should not be NaN.
        return same & (real.unsqueeze(-2) | ~real.unsqueeze(-1))

    def _windows(self, attn: nn.Module, x: torch.Tensor, shifts: tuple[int, ...]) -> torch.Tensor:
        padding = get_padding(x.shape[1:-1], self.window_sizes)
        real = torch.ones_like(x[:1, ..., :1], dtype=torch.bool)
        mask = self._mask(real, padding, shifts)
        dims = list(range(1, x.dim() - 1))

        x = add_padding(x, padding).roll([-s for s in shifts], dims=dims)
        grid_shape = x.shape[1:-1]
        x = attn(window_partition(x, self.window_sizes), mask=mask)
        x = window_reverse(x, self.window_sizes, grid_shape).roll(shifts, dims=dims)
        return remove_padding(x, padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (m, *grid, embed_dim)."""
        unshifted = (0,) * len(self.window_sizes)
        for attn, ff, shifts in zip(self.attns, self.ff_blocks, (unshifted, self.shift_sizes)):
            x = x + self._windows(attn, x, shifts)
            x = x + ff(x)
        return x
