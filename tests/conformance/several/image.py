"""Self-attention over the pixels of a feature map."""

import torch
from torch import nn


class PixelAttention(nn.Module):
    def __init__(self, in_channels, heads=2, dim_head=8, p_drop=0.1):
        super().__init__()
        self.heads, self.dim_head = heads, dim_head
        inner = heads * dim_head
        self.to_qkv = nn.Conv2d(in_channels, inner * 3, kernel_size=1, bias=False)
        self.to_out = nn.Conv2d(inner, in_channels, kernel_size=1)
        self.drop = nn.Dropout(p_drop)

    def forward(self, fmap):
        b, c, h, w = fmap.shape
        n = h * w
        q, k, v = self.to_qkv(fmap).view(b, 3, self.heads, self.dim_head, n).unbind(1)
        q = q * self.dim_head**-0.5
        sim = torch.einsum("bhdi,bhdj->bhij", q, k)
        attn = sim.softmax(dim=-1)
        attn = self.drop(attn)
        out = torch.einsum("bhij,bhdj->bhdi", attn, v)
        out = out.reshape(b, self.heads * self.dim_head, h, w)
        return self.to_out(out)
