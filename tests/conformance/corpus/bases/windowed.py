"""A sliding window, padding on either side, rotary positions by halves from a table, a growing cache."""

import torch
from torch import nn


class SlidingAttention(nn.Module):
    def __init__(self, d_model, num_heads, window=5, max_len=64):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads
        self.window = window
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        frequencies = 10000.0 ** (-torch.arange(0, self.head_dim, 2).double() / self.head_dim)
        angles = torch.outer(torch.arange(max_len).double(), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def rotary(self, x, positions):
        first, second = x.chunk(2, dim=-1)
        turned = torch.cat([-second, first], dim=-1)
        cos, sin = self.cos[positions].to(x.dtype), self.sin[positions].to(x.dtype)
        return x * cos + turned * sin

    def forward(self, x, padding_mask=None, past_kv=None):
        B, T, C = x.shape
        qkv = self.qkv(x).view(B, T, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        past = 0 if past_kv is None else past_kv[0].shape[2]
        positions = torch.arange(past, past + T)
        q, k = self.rotary(q, positions), self.rotary(k, positions)
        if past_kv is not None:
            k = torch.cat([past_kv[0], k], dim=2)
            v = torch.cat([past_kv[1], v], dim=2)
        distance = positions[:, None] - torch.arange(past + T)[None, :]
        visible = (distance >= 0) & (distance < self.window)
        visible = visible[None, None]
        if padding_mask is not None:
            visible = visible & padding_mask[:, None, None, :]
        logits = q @ k.transpose(-1, -2) * self.head_dim**-0.5
        logits = logits.masked_fill(~visible, -1e9)
        weights = logits.softmax(dim=-1)
        y = (weights @ v).transpose(1, 2).reshape(B, T, C)
        return self.out(y), (k, v)
