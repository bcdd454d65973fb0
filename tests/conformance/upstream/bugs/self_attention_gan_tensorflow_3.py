"""The self-attention of a generator of images: each pixel looks at all others."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm


class SelfAttention(nn.Module):
    """Adds to each pixel what it finds in the image, and starts with nothing added."""

    def __init__(self, ch, sn=False):
        super().__init__()
        wrap = spectral_norm if sn else nn.Identity()
        self.f_conv = wrap(nn.Conv2d(ch, ch // 8, kernel_size=1))
        self.g_conv = wrap(nn.Conv2d(ch, ch // 8, kernel_size=1))
        self.h_conv = wrap(nn.Conv2d(ch, ch, kernel_size=1))
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        # from [bs, c, h, w] to [bs, h, w, c']
        f = self.f_conv(x).permute(0, 2, 3, 1)
        g = self.g_conv(x).permute(0, 2, 3, 1)
        h = self.h_conv(x).permute(0, 2, 3, 1)

        # before
        s = torch.matmul(g, f.transpose(-1, -2))
        attention_shape = s.shape
        s = s.reshape(attention_shape[0], -1, attention_shape[-1])
        beta = s.softmax(dim=1)
        beta = beta.reshape(attention_shape)
        o = torch.matmul(beta, h)
        # after
        s = torch.matmul(g.flatten(1, 2), f.flatten(1, 2).transpose(-1, -2))
        beta = s.softmax(dim=-1)
        o = torch.matmul(beta, h.flatten(1, 2))
        o = o.reshape(h.shape)
        # end
        return self.gamma * o.permute(0, 3, 1, 2) + x


class ResBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(1, channels)
        self.conv = nn.Conv2d(channels, channels, kernel_size=3, padding=1)

    def forward(self, x):
        return x + self.conv(torch.relu(self.norm(x)))


class GeneratorBlock(nn.Module):
    """A block of the generator: a residual block, and attention after it."""

    def __init__(self, channels, sn=False):
        super().__init__()
        self.res = ResBlock(channels)
        self.attention = SelfAttention(channels, sn=sn)

    def forward(self, x):
        return self.attention(self.res(x))
