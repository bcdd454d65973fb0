"""A convolution next to a self-attention on the same image."""

import torch
import torch.nn.functional as F
from torch import nn


class AugmentedConv(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, dk, dv, Nh):
        super().__init__()
        self.dk, self.dv, self.Nh = dk, dv, Nh
        padding = (kernel_size - 1) // 2
        self.conv_out = nn.Conv2d(in_channels, out_channels - dv, kernel_size, padding=padding)
        self.qkv_conv = nn.Conv2d(in_channels, 2 * dk + dv, kernel_size=1)
        self.attn_out = nn.Conv2d(dv, dv, kernel_size=1)

    def split_heads_2d(self, x):
        """(batch, channels, height, width) to (batch, Nh, channels / Nh, height * width)"""
        batch, channels, height, width = x.size()
        return x.reshape(batch, self.Nh, channels // self.Nh, height * width)

    def combine_heads_2d(self, x):
        batch, Nh, dv, H, W = x.size()
        return x.reshape(batch, Nh * dv, H, W)

    def forward(self, x):
        batch, _, height, width = x.size()
        conv_out = self.conv_out(x)

        q, k, v = torch.split(self.qkv_conv(x), [self.dk, self.dk, self.dv], dim=1)
        flat_q = self.split_heads_2d(q) * (self.dk // self.Nh) ** -0.5
        flat_k = self.split_heads_2d(k)
        flat_v = self.split_heads_2d(v)
        weights = F.softmax(torch.matmul(flat_q.transpose(2, 3), flat_k), dim=-1)

        # (batch, Nh, height * width, dvh)
        attn_out = torch.matmul(weights, flat_v.transpose(2, 3))
        # before
        attn_out = torch.reshape(attn_out, (batch, self.Nh, self.dv // self.Nh, height, width))
        # after
        attn_out = torch.reshape(
            attn_out.permute(0, 1, 3, 2), (batch, self.Nh, self.dv // self.Nh, height, width)
        )
        # end
        attn_out = self.attn_out(self.combine_heads_2d(attn_out))
        return torch.cat((conv_out, attn_out), dim=1)
