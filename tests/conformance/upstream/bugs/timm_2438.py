"""A block of Swin Transformer V2 for feature maps of any size: cosine attention in shifted windows."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def window_partition(x: torch.Tensor, window_size: int) -> torch.Tensor:
    """(B, H, W, C) -> (num_windows * B, window_size * window_size, C)"""
    B, H, W, C = x.shape
    x = x.view(B, H // window_size, window_size, W // window_size, window_size, C)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, window_size * window_size, C)


def window_reverse(windows: torch.Tensor, window_size: int, H: int, W: int) -> torch.Tensor:
    """(num_windows * B, window_size * window_size, C) -> (B, H, W, C)"""
    C = windows.shape[-1]
    x = windows.view(-1, H // window_size, W // window_size, window_size, window_size, C)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, H, W, C)


class WindowAttention(nn.Module):
    """Cosine attention within a window, with a bias of the logarithms of the relative positions."""

    def __init__(self, dim: int, window_size: int, num_heads: int, cpb_dim: int = 512):
        super().__init__()
        self.window_size = window_size
        self.num_heads = num_heads
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones(num_heads, 1, 1)))
        self.cpb_mlp = nn.Sequential(
            nn.Linear(2, cpb_dim), nn.ReLU(inplace=True), nn.Linear(cpb_dim, num_heads, bias=False)
        )
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

        steps = torch.arange(window_size)
        coords = torch.stack(torch.meshgrid(steps, steps, indexing="ij")).flatten(1).T
        relative = (coords[:, None] - coords[None, :]).float()
        relative = relative / max(window_size - 1, 1) * 8  # normalize to -8, 8
        relative = torch.sign(relative) * torch.log2(relative.abs() + 1.0) / math.log2(8)
        self.register_buffer("relative_coords", relative, persistent=False)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """
        Args:
            x: (num_windows * B, N, C)
            mask: True where a token of a window may look, (num_windows, N, N)
        """
        B_, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B_, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * torch.clamp(self.logit_scale, max=math.log(1.0 / 0.01)).exp()
        attn = attn + 16 * torch.sigmoid(self.cpb_mlp(self.relative_coords)).permute(2, 0, 1)

        attn = attn.view(-1, mask.shape[0], self.num_heads, N, N)
        attn = attn.masked_fill(~mask[:, None], float("-inf")).view(B_, self.num_heads, N, N)
        x = attn.softmax(dim=-1) @ v
        return self.proj(x.transpose(1, 2).reshape(B_, N, C))


class SwinTransformerV2Block(nn.Module):
    def __init__(
        self,
        dim: int,
        num_heads: int,
        window_size: int = 7,
        shift_size: int = 0,
        mlp_ratio: float = 4.0,
    ):
        super().__init__()
        assert 0 <= shift_size < window_size
        self.window_size = window_size
        self.shift_size = shift_size
        self.attn = WindowAttention(dim, window_size, num_heads)
        self.norm1 = nn.LayerNorm(dim)
        hidden = int(dim * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
        self.norm2 = nn.LayerNorm(dim)

    def get_attn_mask(self, real: torch.Tensor) -> torch.Tensor:
        """The mask of windows whose content was shifted. Padding, where `real` is False, is a region of its own."""
        _, H, W, _ = real.shape
        img_mask = torch.zeros(1, H, W, 1, device=real.device)
        if self.shift_size:
            cuts = (0, -self.window_size, -self.shift_size, None)
            slices = [slice(*ends) for ends in zip(cuts[:-1], cuts[1:])]
            for i, h in enumerate(slices):
                for j, w in enumerate(slices):
                    img_mask[:, h, w] = 3 * i + j
        img_mask = img_mask.masked_fill(~real, -1)
        mask_windows = window_partition(img_mask, self.window_size).squeeze(-1)
        return mask_windows[:, :, None] == mask_windows[:, None, :]

    def _attn(self, x: torch.Tensor) -> torch.Tensor:
        B, H, W, C = x.shape
        shift = (self.shift_size, self.shift_size)
        back = (-self.shift_size, -self.shift_size)
        pad = (0, 0, 0, -W % self.window_size, 0, -H % self.window_size)
        real = torch.ones(1, H, W, 1, dtype=torch.bool, device=x.device)

        # before
        # cyclic shift, then pad to a multiple of the window size
        shifted_x = F.pad(torch.roll(x, shifts=back, dims=(1, 2)), pad)
        real = F.pad(torch.roll(real, shifts=back, dims=(1, 2)), pad)
        # after
        # pad to a multiple of the window size, then cyclic shift
        shifted_x = torch.roll(F.pad(x, pad), shifts=back, dims=(1, 2))
        real = torch.roll(F.pad(real, pad), shifts=back, dims=(1, 2))
        # end
        _, Hp, Wp, _ = shifted_x.shape

        x_windows = window_partition(shifted_x, self.window_size)
        attn_windows = self.attn(x_windows, mask=self.get_attn_mask(real))
        shifted_x = window_reverse(attn_windows, self.window_size, Hp, Wp)

        # before
        shifted_x = shifted_x[:, :H, :W]
        return torch.roll(shifted_x, shifts=shift, dims=(1, 2))
        # after
        shifted_x = torch.roll(shifted_x, shifts=shift, dims=(1, 2))
        return shifted_x[:, :H, :W]
        # end

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (B, H, W, C)"""
        x = x + self.norm1(self._attn(x))
        return x + self.norm2(self.mlp(x))
