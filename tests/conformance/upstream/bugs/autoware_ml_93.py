"""Serialized attention of Point Transformer V3, in the form that is exported: windows of one static size."""

from __future__ import annotations

import torch
import torch.nn as nn


def z_order(grid_coord: torch.Tensor, depth: int = 16) -> torch.Tensor:
    """Interleave the bits of x, y and z.

    Args:
        grid_coord: Voxel indices with shape ``(num_voxels, 3)``.
        depth: Number of bits for each axis.

    Returns:
        Position of each voxel on the curve, with shape ``(num_voxels,)``.
    """
    code = torch.zeros_like(grid_coord[:, 0])
    for bit in range(depth):
        for axis in range(3):
            code = code | (((grid_coord[:, axis] >> bit) & 1) << (3 * bit + axis))
    return code


class SerializedAttention(nn.Module):
    """Multi-head attention within windows of ``patch_size`` voxels along the curve.

    The last window is short if the number of voxels is not a multiple of the patch size. Its free slots are filled
    with other tokens, so that all windows have the same shape and no mask is needed.
    """

    def __init__(
        self,
        channels: int,
        num_heads: int,
        patch_size: int,
        qkv_bias: bool = True,
        qk_scale: float | None = None,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        assert channels % num_heads == 0
        self.channels = channels
        self.num_heads = num_heads
        self.scale = qk_scale or (channels // num_heads) ** -0.5
        self.patch_size_max = patch_size
        self.qkv = nn.Linear(channels, channels * 3, bias=qkv_bias)
        self.proj = nn.Linear(channels, channels)
        self.proj_drop = nn.Dropout(proj_drop)
        self.attn_drop = nn.Dropout(attn_drop)

    def get_padding(self, num_tokens: int, patch_size: int, device: torch.device) -> torch.Tensor:
        """Return the token in each slot of the windows."""
        padded = (num_tokens + patch_size - 1) // patch_size * patch_size
        slots = torch.arange(padded, device=device)
        # before
        return slots.clamp(max=num_tokens - 1)
        # after
        return torch.where(slots < num_tokens, slots, slots - patch_size)
        # end

    def forward(self, feat: torch.Tensor, order: torch.Tensor, inverse: torch.Tensor):
        num_heads = self.num_heads
        patch_size = min(feat.shape[0], self.patch_size_max)
        channels = self.channels

        pad = self.get_padding(feat.shape[0], patch_size, feat.device)
        # padded and serialized: (windows, patch_size, 3, heads, dim) => (3, windows, heads, patch_size, dim)
        qkv = self.qkv(feat)[order[pad]]
        q, k, v = (
            qkv.reshape(-1, patch_size, 3, num_heads, channels // num_heads)
            .permute(2, 0, 3, 1, 4)
            .unbind(dim=0)
        )
        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = self.attn_drop(attn.softmax(dim=-1))
        out = (attn @ v).transpose(1, 2).reshape(-1, channels)

        out = out[: feat.shape[0]][inverse]
        return self.proj_drop(self.proj(out))


class Block(nn.Module):
    """Block of a PTv3 stage: pre-norm attention and feed-forward layers."""

    def __init__(
        self,
        channels: int,
        num_heads: int,
        patch_size: int = 48,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        qk_scale: float | None = None,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(channels)
        self.attn = SerializedAttention(
            channels, num_heads, patch_size, qkv_bias, qk_scale, attn_drop, proj_drop
        )
        self.norm2 = nn.LayerNorm(channels)
        hidden = int(channels * mlp_ratio)
        self.mlp = nn.Sequential(
            nn.Linear(channels, hidden),
            nn.GELU(),
            nn.Dropout(proj_drop),
            nn.Linear(hidden, channels),
            nn.Dropout(proj_drop),
        )

    def forward(self, feat: torch.Tensor, grid_coord: torch.Tensor) -> torch.Tensor:
        """Update the features of the voxels of one sample.

        Args:
            feat: Voxel features with shape ``(num_voxels, channels)``.
            grid_coord: Voxel indices with shape ``(num_voxels, 3)``, not negative, and no two of them equal.
        """
        order = torch.argsort(z_order(grid_coord))
        inverse = torch.argsort(order)
        feat = feat + self.attn(self.norm1(feat), order, inverse)
        return feat + self.mlp(self.norm2(feat))
