"""Causal attention of a book about language models, and a wrapper that runs several of them as heads."""

import torch
from torch import Tensor, nn


def get_mask(size: int, device: torch.device) -> Tensor:
    """True above the diagonal."""
    i = torch.arange(size, device=device)
    return i[None, :] > i[:, None]


class CausalAttention(nn.Module):
    """
    `CausalAttention` is a causal self-attention with one head.

    d_in: the size of the inputs
    d_out: the size of the queries, keys and values
    drop_p: dropout of the weights
    qkv_bias: whether the projections have a bias
    """

    def __init__(self, d_in: int, d_out: int, drop_p: float = 0.0, qkv_bias: bool = False) -> None:
        super().__init__()
        self.w_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.w_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.w_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.scaling = 1.0 / d_out**0.5
        self.dropout = nn.Dropout(drop_p)

    def context_length(self, xs: Tensor) -> int:
        return xs.shape[1]

    def forward(self, xs: Tensor) -> Tensor:
        b, num_tokens, _d_in = xs.shape
        queries, keys, values = self.w_query(xs), self.w_key(xs), self.w_value(xs)

        # causal mask
        attn_scores = queries @ keys.transpose(-2, -1)
        mask = get_mask(num_tokens, xs.device).expand(b, num_tokens, num_tokens)
        masked = attn_scores.masked_fill(mask, float("-inf"))

        # scale and dropout
        # before
        attn_weights = torch.softmax(masked * self.scaling, dim=1)
        # after
        attn_weights = torch.softmax(masked * self.scaling, dim=-1)
        # end
        attn_weights = self.dropout(attn_weights)

        return attn_weights @ values


class MultiHeadAttentionWrapper(nn.Module):
    """Several heads, one after the other, with their outputs next to each other."""

    def __init__(self, num_heads: int, d_in: int, d_out: int, drop_p: float = 0.0) -> None:
        super().__init__()
        self.heads = nn.ModuleList([CausalAttention(d_in, d_out, drop_p) for _ in range(num_heads)])

    def forward(self, xs: Tensor) -> Tensor:
        return torch.cat([attn(xs) for attn in self.heads], dim=-1)
