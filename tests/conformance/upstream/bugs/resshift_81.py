"""A block of a Swin transformer with shifted windows, on feature maps with the channels first."""

import torch
from torch import nn


def window_partition(x, window_size):
    """Turn x of shape (B, C, H, W) into windows, of shape (B * windows, window_size ** 2, C)."""
    B, C, H, W = x.shape
    x = x.view(B, C, H // window_size, window_size, W // window_size, window_size)
    return x.permute(0, 2, 4, 3, 5, 1).reshape(-1, window_size**2, C)


def window_reverse(windows, window_size, H, W):
    x = windows.view(
        -1, H // window_size, W // window_size, window_size, window_size, windows.shape[-1]
    )
    return x.permute(0, 5, 1, 3, 2, 4).reshape(-1, windows.shape[-1], H, W)


class WindowAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask):
        B_, N, C = x.shape
        qkv = self.qkv(x).reshape(B_, N, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attn = q * self.scale @ k.transpose(-2, -1)
        attn = attn.unflatten(0, (-1, mask.shape[0])) + mask[:, None]
        attn = attn.flatten(0, 1).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B_, N, C))


class SwinTransformerBlock(nn.Module):
    """x: a feature map, of shape (B, dim, H, W). H and W are multiples of the window size."""

    def __init__(self, dim, num_heads, window_size=4, shift_size=2):
        super().__init__()
        self.window_size = window_size
        self.shift_size = shift_size
        self.norm1 = nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, num_heads)

    def calculate_mask(self, x):
        # calculate attention mask for SW-MSA
        H, W = x.shape[-2:]
        img_mask = torch.zeros((1, 1, H, W), dtype=x.dtype, device=x.device)
        slices = (
            slice(0, -self.window_size),
            slice(-self.window_size, -self.shift_size),
            slice(-self.shift_size, None),
        )
        cnt = 0
        for h in slices:
            for w in slices:
                # before
                img_mask[:, h, w, :] = cnt
                # after
                img_mask[:, :, h, w] = cnt
                # end
                cnt += 1
        regions = window_partition(img_mask, self.window_size).squeeze(-1)
        attn_mask = regions.unsqueeze(1) - regions.unsqueeze(2)
        return attn_mask.masked_fill(attn_mask != 0, float("-inf"))

    def forward(self, x):
        H, W = x.shape[-2:]
        shifted = torch.roll(x, shifts=(-self.shift_size, -self.shift_size), dims=(2, 3))
        windows = self.norm1(window_partition(shifted, self.window_size))
        windows = self.attn(windows, self.calculate_mask(x))
        shifted = window_reverse(windows, self.window_size, H, W)
        return x + torch.roll(shifted, shifts=(self.shift_size, self.shift_size), dims=(2, 3))
