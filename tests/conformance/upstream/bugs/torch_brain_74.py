"""Cross-attention whose mask is turned into a bias of the scores."""

import torch
from torch import nn


def attention_with_bias(q, k, v, attn_bias):
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    return torch.softmax(scores + attn_bias, dim=-1) @ v


class RotaryCrossAttention(nn.Module):
    def __init__(self, *, dim: int = 32, heads: int = 4, dim_head: int = 8):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.norm_context = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim)

    def forward(self, x_query, x_context, context_mask=None):
        """
        Args:
            x_query: tensor of shape (batch, n_query, dim).
            x_context: tensor of shape (batch, n_context, dim).
            context_mask: boolean tensor of shape (batch, n_context), True at tokens to attend to.
        """
        x_query = self.norm(x_query)
        x_context = self.norm_context(x_context)
        q = self.to_q(x_query)
        k, v = self.to_kv(x_context).chunk(2, dim=-1)
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (q, k, v))
        attn_bias = torch.zeros(q.shape[0], 1, 1, k.shape[2], dtype=q.dtype, device=q.device)
        if context_mask is not None:
            mask = context_mask[:, None, None, :]
            # before
            attn_bias = attn_bias.masked_fill(mask, float("-inf"))
            # after
            attn_bias = attn_bias.masked_fill(mask.logical_not(), float("-inf"))
            # end
        out = attention_with_bias(q, k, v, attn_bias)
        out = out.transpose(1, 2).flatten(2)
        return self.to_out(out)
