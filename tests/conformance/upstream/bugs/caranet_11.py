"""Attention along one axis of a feature map."""

import torch
import torch.nn.functional as F
from torch import nn


class self_attn(nn.Module):
    """mode: 'h', the rows of the image attend to each other, or 'w', the columns."""

    def __init__(self, in_channels, mode="h"):
        super().__init__()
        self.mode = mode
        self.query_conv = nn.Conv2d(in_channels, in_channels // 2, kernel_size=1)
        self.key_conv = nn.Conv2d(in_channels, in_channels // 2, kernel_size=1)
        self.value_conv = nn.Conv2d(in_channels, in_channels, kernel_size=1)
        self.gamma = nn.Parameter(torch.zeros(1))

    def fold(self, x):
        """Bring the axis of the attention to the end, and all else into one dimension."""
        batch_size, _, height, width = x.size()
        # before
        return x.view(batch_size, -1, height if self.mode == "h" else width)
        # after
        if self.mode == "h":
            x = x.permute(0, 1, 3, 2).contiguous()
        return x.view(batch_size, -1, height if self.mode == "h" else width)
        # end

    def unfold(self, x, shape):
        batch_size, channel, height, width = shape
        # before
        return x.view(batch_size, channel, height, width)
        # after
        if self.mode == "h":
            return x.view(batch_size, channel, width, height).permute(0, 1, 3, 2)
        return x.view(batch_size, channel, height, width)
        # end

    def forward(self, x):
        projected_query = self.fold(self.query_conv(x)).permute(0, 2, 1)
        projected_key = self.fold(self.key_conv(x))
        scale = projected_key.size(1) ** -0.5
        attention = F.softmax(torch.bmm(projected_query, projected_key) * scale, dim=-1)

        projected_value = self.fold(self.value_conv(x))
        out = torch.bmm(projected_value, attention.permute(0, 2, 1))
        return self.gamma * self.unfold(out, x.shape) + x
