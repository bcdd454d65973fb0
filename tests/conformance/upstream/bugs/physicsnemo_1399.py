"""A transformer block of a weather model: attention in windows of latitude and longitude, shifted in every other block."""

import torch
from torch import Tensor, nn


def window_partition(x: Tensor, window_size: tuple[int, int]) -> Tensor:
    """
    Args:
        x: (B, Lat, Lon, C)

    Returns:
        windows: (B * num_windows, win_lat * win_lon, C)
    """
    B, Lat, Lon, C = x.shape
    win_lat, win_lon = window_size
    x = x.view(B, Lat // win_lat, win_lat, Lon // win_lon, win_lon, C)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, win_lat * win_lon, C)


def window_reverse(windows: Tensor, window_size: tuple[int, int], Lat: int, Lon: int) -> Tensor:
    """The inverse of window_partition."""
    win_lat, win_lon = window_size
    x = windows.view(-1, Lat // win_lat, Lon // win_lon, win_lat, win_lon, windows.shape[-1])
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, Lat, Lon, windows.shape[-1])


def get_shift_window_mask(input_resolution, window_size, shift_size) -> Tensor:
    """
    Rows that are next to each other only after the roll must not see each other. Longitude is cyclic: nothing is
    masked along it.

    Returns:
        attn_mask: (num_windows, win_lat * win_lon, win_lat * win_lon), 0 or -inf
    """
    Lat, Lon = input_resolution
    win_lat, shift_lat = window_size[0], shift_size[0]
    img_mask = torch.zeros(1, Lat, Lon, 1)
    for cnt, rows in enumerate(
        (slice(0, -win_lat), slice(-win_lat, -shift_lat), slice(-shift_lat, None))
    ):
        img_mask[:, rows] = cnt
    mask = window_partition(img_mask, window_size).squeeze(-1)
    other = mask[:, None, :] != mask[:, :, None]
    return torch.zeros(other.shape).masked_fill(other, float("-inf"))


class EarthAttention2D(nn.Module):
    """Attention in a window, with a bias for the relative position."""

    def __init__(self, dim, window_size, num_heads, qkv_bias=True):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        area = window_size[0] * window_size[1]
        self.earth_position_bias = nn.Parameter(torch.randn(num_heads, area, area) * 0.02)
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        B_, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B_, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attn = (q * self.scale) @ k.transpose(-2, -1) + self.earth_position_bias
        if mask is not None:
            windows = mask.shape[0]
            attn = attn.view(B_ // windows, windows, self.num_heads, N, N) + mask[:, None]
            attn = attn.view(B_, self.num_heads, N, N)
        x = attn.softmax(dim=-1) @ v
        return self.proj(x.transpose(1, 2).reshape(B_, N, C))


class Transformer2DBlock(nn.Module):
    """
    Args:
        dim: number of input channels
        input_resolution: (lat, lon)
        window_size: (lat, lon)
        shift_size: (lat, lon); half of the window where it is not given, (0, 0) for no shift
    """

    def __init__(self, dim, num_heads, input_resolution, window_size, shift_size=None):
        super().__init__()
        self.input_resolution = input_resolution
        self.window_size = window_size
        self.shift_size = shift_size or (window_size[0] // 2, window_size[1] // 2)
        self.roll = any(self.shift_size)
        self.norm1 = nn.LayerNorm(dim)
        self.attn = EarthAttention2D(dim, window_size, num_heads)
        attn_mask = None
        if self.roll and self.shift_size[0]:
            attn_mask = get_shift_window_mask(input_resolution, window_size, self.shift_size)
        self.register_buffer("attn_mask", attn_mask)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, Lat * Lon, C)"""
        Lat, Lon = self.input_resolution
        B, L, C = x.shape
        assert Lat * Lon == L, "input feature has wrong size"

        shortcut = x
        x = self.norm1(x).view(B, Lat, Lon, C)
        shift_lat, shift_lon = self.shift_size
        if self.roll:
            # before
            x = torch.roll(x, shifts=(-shift_lat, -shift_lat), dims=(1, 2))
            # after
            x = torch.roll(x, shifts=(-shift_lat, -shift_lon), dims=(1, 2))
            # end
        attn_windows = self.attn(window_partition(x, self.window_size), mask=self.attn_mask)
        x = window_reverse(attn_windows, self.window_size, Lat, Lon)
        if self.roll:
            x = torch.roll(x, shifts=(shift_lat, shift_lon), dims=(1, 2))
        return shortcut + x.reshape(B, L, C)
