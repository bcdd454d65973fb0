"""The sliding window attention of a hybrid of attention and recurrence."""

import torch
from torch import nn


def flash_attn_func(q, k, v, causal=False, window_size=(-1, -1)):
    """
    Attention on tensors of shape (batch, length, heads, head_dim).

    window_size: how many keys to the left and to the right are seen; a negative number means all of them.
    """
    T = q.size(1)
    left, right = window_size
    distance = torch.arange(T, device=q.device)[:, None] - torch.arange(T, device=q.device)
    keep = torch.ones_like(distance, dtype=torch.bool)
    if left >= 0:
        keep &= distance <= left
    if right >= 0:
        keep &= distance >= -right
    if causal:
        keep &= distance >= 0
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = (q @ k.transpose(-2, -1)) * q.size(-1) ** -0.5
    scores = scores.masked_fill(~keep, float("-inf"))
    return (scores.softmax(dim=-1) @ v).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, dim=128, head_dim=32, window_size=3):
        super().__init__()
        self.head_dim = head_dim
        self.window_size = window_size
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.output = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, C // self.head_dim, self.head_dim).unbind(dim=2)
        # before
        x = flash_attn_func(q, k, v, causal=True, window_size=(-self.window_size, 0))
        # after
        x = flash_attn_func(q, k, v, causal=True, window_size=(self.window_size, 0))
        # end
        return self.output(x.reshape(B, T, C))
