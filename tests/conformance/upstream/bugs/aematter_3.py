"""Attention within strips of a feature map: one half of the channels in rows, the other in columns."""

import torch
from torch import nn


class AEALblock(nn.Module):
    def __init__(self, d_model, nhead, width=2, dropout=0.0):
        super().__init__()
        self.width = width
        # before
        self.self_attn1 = nn.MultiheadAttention(d_model // 2, nhead // 2, dropout=dropout)
        self.self_attn2 = nn.MultiheadAttention(d_model // 2, nhead // 2, dropout=dropout)
        # after
        self.self_attn1 = nn.MultiheadAttention(
            d_model // 2, nhead // 2, dropout=dropout, batch_first=True
        )
        self.self_attn2 = nn.MultiheadAttention(
            d_model // 2, nhead // 2, dropout=dropout, batch_first=True
        )
        # end
        self.norm = nn.GroupNorm(1, d_model)

    def forward(self, src):
        """src: (batch, d_model, height, width), the sides of the image multiples of the width of a strip"""
        b, c, h, w = src.shape
        s = self.width
        normed = self.norm(src)
        x1, x2 = normed[:, : c // 2], normed[:, c // 2 :]

        # strips of s rows
        x1_ = x1.reshape(b, c // 2, h // s, s, w).permute(0, 2, 3, 4, 1)
        x1_ = x1_.reshape(b * (h // s), s * w, c // 2)
        # strips of s columns
        x2_ = x2.reshape(b, c // 2, h, w // s, s).permute(0, 3, 2, 4, 1)
        x2_ = x2_.reshape(b * (w // s), h * s, c // 2)

        x1_ = self.self_attn1(x1_, x1_, x1_)[0]
        x2_ = self.self_attn2(x2_, x2_, x2_)[0]

        x1 = x1_.reshape(b, h // s, s, w, c // 2).permute(0, 4, 1, 2, 3).reshape(b, c // 2, h, w)
        x2 = x2_.reshape(b, w // s, h, s, c // 2).permute(0, 4, 2, 1, 3).reshape(b, c // 2, h, w)
        return src + torch.cat((x1, x2), dim=1)
