"""Convolutional block attention module: which channels matter, then which pixels."""

import torch
import torch.nn as nn


class channel_attention(nn.Module):
    """Weighs the channels by their averages and maxima over the image."""

    def __init__(self, channel, ratio=8):
        super().__init__()

        self.avg_pool = nn.AdaptiveAvgPool2d(1)
        self.max_pool = nn.AdaptiveMaxPool2d(1)

        self.mlp = nn.Sequential(
            nn.Linear(channel, channel // ratio, bias=False),
            nn.ReLU(inplace=True),
            nn.Linear(channel // ratio, channel, bias=False),
        )

        self.sigmoid = nn.Sigmoid()

    def forward(self, x):
        x1 = self.avg_pool(x).squeeze(-1).squeeze(-1)
        x1 = self.mlp(x1)

        x2 = self.max_pool(x).squeeze(-1).squeeze(-1)
        x2 = self.mlp(x2)

        # before
        feats = x1 + x1
        # after
        feats = x1 + x2
        # end
        feats = self.sigmoid(feats).unsqueeze(-1).unsqueeze(-1)
        refined_feats = x * feats

        return refined_feats


class spatial_attention(nn.Module):
    """Weighs the pixels by their averages and maxima over the channels."""

    def __init__(self, kernel_size=7):
        super().__init__()
        self.conv = nn.Conv2d(2, 1, kernel_size=kernel_size, padding=kernel_size // 2, bias=False)
        self.sigmoid = nn.Sigmoid()

    def forward(self, x):
        x1 = torch.mean(x, dim=1, keepdim=True)
        x2, _ = torch.max(x, dim=1, keepdim=True)

        feats = torch.cat([x1, x2], dim=1)
        feats = self.conv(feats)
        feats = self.sigmoid(feats)
        refined_feats = x * feats

        return refined_feats


class cbam(nn.Module):
    def __init__(self, channel, ratio=8, kernel_size=7):
        super().__init__()

        self.ca = channel_attention(channel, ratio)
        self.sa = spatial_attention(kernel_size)

    def forward(self, x):
        x = self.ca(x)
        x = self.sa(x)
        return x
