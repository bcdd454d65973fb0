"""The attention of a model of mass spectra between peaks, with features of the pairs of peaks."""

import math
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Linear, Module, Parameter


def _in_projection(q: Tensor, k: Tensor, v: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    w_q, w_k, w_v = w.chunk(3)
    b_q, b_k, b_v = b.chunk(3)
    return F.linear(q, w_q, b_q), F.linear(k, w_k, b_k), F.linear(v, w_v, b_v)


class MultiheadAttention(Module):
    """Multi-head attention in which the difference of two peaks' formulas takes part.

    Args:
        embed_dim: Total dimension of the model.
        num_heads: Number of parallel attention heads.
        dropout: Dropout probability on the attention weights.
        additive_attn: Whether the scores are a network of the sum of query and key, instead of their product.
        pairwise_featurization: Whether features of pairs are given.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        additive_attn: bool = False,
        pairwise_featurization: bool = False,
    ):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.head_dim = embed_dim // num_heads
        self.additive_attn = additive_attn
        self.pairwise_featurization = pairwise_featurization
        if self.additive_attn:
            self.attn_weight_net = nn.Linear(self.head_dim, 1)
        if self.pairwise_featurization:
            self.bias_u = Parameter(torch.zeros(self.num_heads, self.head_dim))
        self.in_proj_weight = Parameter(torch.empty((3 * embed_dim, embed_dim)))
        self.in_proj_bias = Parameter(torch.zeros(3 * embed_dim))
        self.out_proj = Linear(embed_dim, embed_dim)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Optional[Tensor] = None,
        pairwise_features: Optional[Tensor] = None,
    ) -> tuple[Tensor, Tensor]:
        """
        Args:
            query, key, value: (batch, peaks, embed_dim)
            key_padding_mask: True at padding, of shape (batch, peaks)
            pairwise_features: (batch, peaks, peaks, embed_dim)
        """
        bsz, tgt_len, _ = query.shape
        src_len = key.shape[1]
        q, k, v = _in_projection(query, key, value, self.in_proj_weight, self.in_proj_bias)
        q = q.view(bsz, tgt_len, self.num_heads, self.head_dim).transpose(1, 2)
        k = k.view(bsz, src_len, self.num_heads, self.head_dim).transpose(1, 2)
        v = v.view(bsz, src_len, self.num_heads, self.head_dim).transpose(1, 2)

        if self.additive_attn:
            attn = self.attn_weight_net(torch.tanh(q.unsqueeze(3) + k.unsqueeze(2))).squeeze(-1)
        else:
            attn = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(self.head_dim)
        if self.pairwise_featurization and pairwise_features is not None:
            pair = pairwise_features.unflatten(-1, (self.num_heads, self.head_dim))
            u = q + self.bias_u[:, None, :]
            attn = attn + torch.einsum("bhqd,bqkhd->bhqk", u, pair) / math.sqrt(self.head_dim)

        if key_padding_mask is not None:
            # before
            new_attn_mask = torch.ones_like(attn)
            new_attn_mask = new_attn_mask.masked_fill(key_padding_mask[:, None, None, :], 0.0)
            attn = attn * new_attn_mask
            # after
            new_attn_mask = torch.zeros_like(attn)
            new_attn_mask.masked_fill_(key_padding_mask[:, None, None, :], float("-inf"))
            attn = attn + new_attn_mask
            # end

        attn = F.softmax(attn, dim=-1)
        attn = F.dropout(attn, p=self.dropout, training=self.training)
        attn_output = torch.matmul(attn, v).transpose(1, 2).reshape(bsz, tgt_len, self.embed_dim)
        return self.out_proj(attn_output), attn
