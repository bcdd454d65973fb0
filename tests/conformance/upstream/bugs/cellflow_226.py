"""Pools the perturbations of a condition into one embedding, read by a class token."""

import math

import torch
from torch import nn


def get_masks(condition_mask):
    """Return which pairs of tokens are both real, of shape (batch, 1, tokens, tokens)."""
    return (condition_mask[:, :, None] & condition_mask[:, None, :])[:, None]


class SelfAttention(nn.Module):
    """Multi-head self-attention whose mask has a row for each query."""

    def __init__(self, dim, num_heads, dropout_rate=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout_rate)

    def forward(self, x, mask):
        q, k, v = (
            layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = self.dropout(scores.softmax(dim=-1))
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class TokenAttentionPooling(nn.Module):
    """
    Parameters
    ----------
    dim
        Size of a perturbation.
    num_heads
        Number of heads.
    dropout_rate
        Rate for the weights.
    act_fn
        What comes after the attention.
    """

    def __init__(self, dim, num_heads=4, dropout_rate=0.0, act_fn=torch.nn.functional.silu):
        super().__init__()
        self.class_token = nn.Parameter(torch.randn(1, 1, dim))
        self.attention = SelfAttention(dim, num_heads, dropout_rate)
        self.act_fn = act_fn
        self.final_dense = nn.Linear(dim, dim)

    def forward(self, x, condition_mask):
        """
        Parameters
        ----------
        x
            Perturbations, of shape ``(batch, tokens, dim)``.
        condition_mask
            True at perturbations, False at padding, of shape ``(batch, tokens)``.
        """
        mask = get_masks(condition_mask)
        batch_size, _, n_tokens, _ = mask.shape

        # add the class token
        x = torch.cat([self.class_token.expand(batch_size, -1, -1), x], dim=1)
        column = torch.ones(batch_size, 1, n_tokens, 1, dtype=torch.bool, device=x.device)
        # before
        row = torch.ones(batch_size, 1, 1, n_tokens + 1, dtype=torch.bool, device=x.device)
        # after
        row = torch.cat([column[:, :, :1], condition_mask[:, None, None, :]], dim=3)
        # end
        mask = torch.cat([row, torch.cat([column, mask], dim=3)], dim=2)

        # the class token is the embedding of the condition
        z = self.attention(x, mask)[:, 0]
        return self.final_dense(self.act_fn(z))
