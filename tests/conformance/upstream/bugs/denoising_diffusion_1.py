"""The attention block of a diffusion model's U-Net."""

import torch
import torch.nn.functional as F
from torch import nn


def normalize(in_channels):
    return nn.GroupNorm(num_groups=min(8, in_channels), num_channels=in_channels, eps=1e-6)


class NIN(nn.Module):
    """A network in network, which is a linear layer over the channels of an image."""

    def __init__(self, in_channels, num_units, init_scale=1.0):
        super().__init__()
        self.W = nn.Parameter(torch.randn(in_channels, num_units) * init_scale / in_channels**0.5)
        self.b = nn.Parameter(torch.zeros(num_units))

    def forward(self, x):
        return torch.einsum("bchw,co->bohw", x, self.W) + self.b[None, :, None, None]


class AttnBlock(nn.Module):
    """Self-attention over all pixels, with a residual."""

    def __init__(self, channels):
        super().__init__()
        self.normalize = normalize(channels)
        self.query = NIN(channels, channels)
        self.key = NIN(channels, channels)
        self.value = NIN(channels, channels)
        self.proj_out = NIN(channels, channels)

    def forward(self, x):
        B, C, H, W = x.shape
        h = self.normalize(x)
        query = self.query(h)
        key = self.key(h)
        value = self.value(h)

        # attention of every pixel to every other one
        w = torch.einsum("bchw,bcij->bhwij", query, key) * (int(C) ** (-0.5))
        w = w.view(B, H, W, H * W)
        w = F.softmax(w, dim=-1)
        w = w.view(B, H, W, H, W)
        # before
        h = torch.einsum("bhwij,bcij->bchw", w, key)
        # after
        h = torch.einsum("bhwij,bcij->bchw", w, value)
        # end

        return x + self.proj_out(h)
