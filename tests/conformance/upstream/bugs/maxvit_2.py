"""Attention within windows, and attention over a grid that spans the whole image (MaxViT)."""

import torch
from torch import nn


def window_partition(x, window_size):
    """Return the windows of (B, C, H, W), of shape (windows * B, window_size ** 2, C)."""
    B, C, H, W = x.shape
    x = x.view(B, C, H // window_size, window_size, W // window_size, window_size)
    return x.permute(0, 2, 4, 3, 5, 1).reshape(-1, window_size**2, C)


def window_reverse(windows, shape, window_size):
    B, C, H, W = shape
    x = windows.view(B, H // window_size, W // window_size, window_size, window_size, C)
    return x.permute(0, 5, 1, 3, 2, 4).reshape(B, C, H, W)


def grid_partition(x, grid_size):
    """Return the cells of (B, C, H, W) that a grid of fixed size takes one place each from."""
    B, C, H, W = x.shape
    # before
    x = x.view(B, C, H // grid_size, grid_size, W // grid_size, grid_size)
    return x.permute(0, 2, 4, 3, 5, 1).reshape(-1, grid_size**2, C)
    # after
    x = x.view(B, C, grid_size, H // grid_size, grid_size, W // grid_size)
    return x.permute(0, 3, 5, 2, 4, 1).reshape(-1, grid_size**2, C)
    # end


def grid_reverse(grid, shape, grid_size):
    B, C, H, W = shape
    # before
    x = grid.view(B, H // grid_size, W // grid_size, grid_size, grid_size, C)
    return x.permute(0, 5, 1, 3, 2, 4).reshape(B, C, H, W)
    # after
    x = grid.view(B, H // grid_size, W // grid_size, grid_size, grid_size, C)
    return x.permute(0, 5, 3, 1, 4, 2).reshape(B, C, H, W)
    # end


class RelativeSelfAttention(nn.Module):
    """Self-attention with a learned bias for each offset between two places of a window."""

    def __init__(self, dim, num_heads, size):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.bias_table = nn.Parameter(torch.randn((2 * size - 1) ** 2, num_heads) * 0.02)
        ys, xs = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        coords = torch.stack([ys.flatten(), xs.flatten()], dim=-1)
        offsets = coords[:, None] - coords[None] + size - 1
        index = offsets[..., 0] * (2 * size - 1) + offsets[..., 1]
        self.register_buffer("index", index, persistent=False)

    def forward(self, x):
        B_, N, C = x.shape
        qkv = self.qkv(x).reshape(B_, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = q * self.scale @ k.transpose(-2, -1)
        attn = attn + self.bias_table[self.index].permute(2, 0, 1)
        x = attn.softmax(dim=-1) @ v
        return self.proj(x.transpose(1, 2).reshape(B_, N, C))


class MaxViTAttention(nn.Module):
    """
    Args:
        dim (int): channels.
        num_heads (int): number of heads.
        size (int): places on a side of a window, and of the grid.
    """

    def __init__(self, dim, num_heads=4, size=2):
        super().__init__()
        self.size = size
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.block_attn = RelativeSelfAttention(dim, num_heads, size)
        self.grid_attn = RelativeSelfAttention(dim, num_heads, size)

    def forward(self, x):
        windows = window_partition(x, self.size)
        windows = windows + self.block_attn(self.norm1(windows))
        x = window_reverse(windows, x.shape, self.size)
        cells = grid_partition(x, self.size)
        cells = cells + self.grid_attn(self.norm2(cells))
        return grid_reverse(cells, x.shape, self.size)
