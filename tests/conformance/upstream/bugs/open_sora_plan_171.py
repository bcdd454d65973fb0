"""Spatial attention in the autoencoder of a video model."""

import torch
import torch.nn.functional as F
from torch import nn


class CausalConv3d(nn.Module):
    """A convolution that sees no later frame."""

    def __init__(self, chan_in, chan_out, kernel_size=1):
        super().__init__()
        self.time_kernel_size = kernel_size
        self.conv = nn.Conv3d(chan_in, chan_out, kernel_size)

    def forward(self, x):
        first_frame_pad = x[:, :, :1].repeat((1, 1, self.time_kernel_size - 1, 1, 1))
        return self.conv(torch.cat((first_frame_pad, x), dim=2))


class AttnBlock3D(nn.Module):
    def __init__(self, in_channels):
        super().__init__()
        self.in_channels = in_channels
        self.norm = nn.GroupNorm(num_groups=4, num_channels=in_channels, eps=1e-6, affine=True)
        self.q = CausalConv3d(in_channels, in_channels, kernel_size=1)
        self.k = CausalConv3d(in_channels, in_channels, kernel_size=1)
        self.v = CausalConv3d(in_channels, in_channels, kernel_size=1)
        self.proj_out = CausalConv3d(in_channels, in_channels, kernel_size=1)

    def forward(self, x):
        """x: a video, of shape (b, c, t, h, w). Pixels attend to the pixels of their own frame."""
        h_ = self.norm(x)
        q, k, v = self.q(h_), self.k(h_), self.v(h_)
        b, c, t, h, w = q.shape
        # before
        q = q.reshape(b * t, c, h * w)
        k = k.reshape(b * t, c, h * w)
        v = v.reshape(b * t, c, h * w)
        # after
        q = q.permute(0, 2, 1, 3, 4).reshape(b * t, c, h * w)
        k = k.permute(0, 2, 1, 3, 4).reshape(b * t, c, h * w)
        v = v.permute(0, 2, 1, 3, 4).reshape(b * t, c, h * w)
        # end
        w_ = torch.bmm(q.permute(0, 2, 1), k) * (int(c) ** (-0.5))
        w_ = F.softmax(w_, dim=2)
        h_ = torch.bmm(v, w_.permute(0, 2, 1))
        # before
        h_ = h_.reshape(b, c, t, h, w)
        # after
        h_ = h_.reshape(b, t, c, h, w).permute(0, 2, 1, 3, 4)
        # end
        return x + self.proj_out(h_)
