"""A decoder's attention with a sliding window and a mask made from positions."""

import torch
from torch import nn


def create_causal_mask(N, offset=0, window_size=None):
    rinds = torch.arange(offset + N)
    linds = torch.arange(offset, offset + N) if offset else rinds
    linds = linds[:, None]
    rinds = rinds[None]
    mask = linds >= rinds
    if window_size is not None:
        # before
        mask = mask & (linds <= rinds + window_size)
        # after
        mask = mask & (linds < rinds + window_size)
        # end
    return mask


class Attention(nn.Module):
    def __init__(self, dims: int, num_heads: int, window_size: int = 5):
        super().__init__()
        self.n_heads = num_heads
        self.window_size = window_size
        self.scale = (dims // num_heads) ** -0.5
        self.q_proj = nn.Linear(dims, dims, bias=False)
        self.k_proj = nn.Linear(dims, dims, bias=False)
        self.v_proj = nn.Linear(dims, dims, bias=False)
        self.o_proj = nn.Linear(dims, dims, bias=False)

    def forward(self, x: torch.Tensor, cache=None):
        B, L, _ = x.shape
        queries = self.q_proj(x).reshape(B, L, self.n_heads, -1).transpose(1, 2)
        keys = self.k_proj(x).reshape(B, L, self.n_heads, -1).transpose(1, 2)
        values = self.v_proj(x).reshape(B, L, self.n_heads, -1).transpose(1, 2)
        offset = 0
        if cache is not None:
            offset = cache[0].shape[2]
            keys = torch.cat([cache[0], keys], dim=2)
            values = torch.cat([cache[1], values], dim=2)
        mask = create_causal_mask(L, offset, self.window_size).to(x.device)
        scores = (queries * self.scale) @ keys.transpose(-1, -2)
        scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
        scores = torch.softmax(scores, dim=-1)
        values_hat = (scores @ values).transpose(1, 2).reshape(B, L, -1)
        return self.o_proj(values_hat), (keys, values)
