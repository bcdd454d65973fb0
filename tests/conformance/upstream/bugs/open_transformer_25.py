"""The self-attention of a speech encoder, with relative positions on both sides."""

import math

import torch
from torch import nn


class MultiHeadedSelfAttentionWithRelPos(nn.Module):
    def __init__(self, n_heads, d_model):
        super().__init__()
        self.nheads = n_heads
        self.d_k = d_model // n_heads
        self.qvk_proj = nn.Linear(d_model, d_model * 3)
        self.pos_proj = nn.Linear(d_model, d_model, bias=False)
        self.output_proj = nn.Linear(d_model, d_model)
        self.posu = nn.Parameter(torch.randn(1, 1, n_heads, self.d_k) * 0.1)
        self.posv = nn.Parameter(torch.randn(1, 1, n_heads, self.d_k) * 0.1)

    def positions(self, x, distances):
        """The sinusoids of the distances, of shape (distances, d_model)."""
        half = self.nheads * self.d_k // 2
        speeds = torch.exp(-math.log(10000.0) * torch.arange(half, device=x.device) / half)
        angles = distances[:, None] * speeds
        return torch.cat([angles.sin(), angles.cos()], dim=-1).to(x.dtype)

    def left_shift(self, bd, length):
        """Turn the scores of distances, from the largest to the smallest, into scores of keys."""
        b, h, t, n = bd.shape
        padded = torch.cat([bd.new_zeros(b, h, t, 1), bd], dim=-1)
        shifted = padded.view(b, h, n + 1, t)[:, :, 1:].reshape(b, h, t, n)
        return shifted[..., :length]

    def forward(self, x):
        b, t, _ = x.shape
        query, value, key = self.qvk_proj(x).chunk(3, dim=-1)
        query = query.view(b, t, self.nheads, self.d_k)
        key = key.view(b, t, self.nheads, self.d_k).transpose(1, 2)
        value = value.view(b, t, self.nheads, self.d_k).transpose(1, 2)
        # before
        distances = torch.arange(t - 1, -1, -1, device=x.device)
        # after
        distances = torch.arange(t - 1, -t, -1, device=x.device)
        # end
        pos = self.pos_proj(self.positions(x, distances)).view(-1, self.nheads, self.d_k)
        ac = torch.matmul((query + self.posu).transpose(1, 2), key.transpose(2, 3))
        bd = torch.einsum("bthd,nhd->bhtn", query + self.posv, pos)
        bd = self.left_shift(bd, t)
        attn_weights = torch.softmax((ac + bd) / math.sqrt(self.d_k), dim=-1)
        context = torch.matmul(attn_weights, value).transpose(1, 2).reshape(b, t, -1)
        return self.output_proj(context)
