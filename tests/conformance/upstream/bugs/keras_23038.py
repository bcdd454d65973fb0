"""Multi-head attention that leaves the causal mask to a fused kernel where there is one."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class MultiHeadAttention(nn.Module):
    """
    Args:
        num_heads: number of heads.
        key_dim: size of a head for queries and keys.
        embed_dim: size of the inputs and of the output.
        value_dim: size of a head for values; `key_dim` by default.
        dropout: rate for the attention scores.
        use_bias: whether the projections have biases.
    """

    def __init__(self, num_heads, key_dim, embed_dim, value_dim=None, dropout=0.0, use_bias=True):
        super().__init__()
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim or key_dim
        self.dropout_rate = dropout
        self.query_dense = nn.Linear(embed_dim, num_heads * key_dim, bias=use_bias)
        self.key_dense = nn.Linear(embed_dim, num_heads * key_dim, bias=use_bias)
        self.value_dense = nn.Linear(embed_dim, num_heads * self.value_dim, bias=use_bias)
        self.output_dense = nn.Linear(num_heads * self.value_dim, embed_dim, bias=use_bias)
        self.dropout_layer = nn.Dropout(dropout)

    def _compute_causal_mask(self, query, key):
        q_len, k_len = query.shape[1], key.shape[1]
        return torch.ones(1, q_len, k_len, dtype=torch.bool, device=query.device).tril()

    def _can_use_fused(self, return_attention_scores):
        return self.dropout_rate == 0.0 and not return_attention_scores

    def _compute_attention(self, query, key, value, mask, is_causal, return_attention_scores):
        if self._can_use_fused(return_attention_scores):
            if mask is not None:
                mask = mask[:, None]
            return F.scaled_dot_product_attention(
                query, key, value, mask, is_causal=is_causal
            ), None
        scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / math.sqrt(self.key_dim)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], torch.finfo(scores.dtype).min)
        scores = F.softmax(scores, dim=-1)
        return torch.einsum("bhqk,bhkd->bhqd", self.dropout_layer(scores), value), scores

    def forward(
        self,
        query,
        value=None,
        key=None,
        attention_mask=None,
        return_attention_scores=False,
        use_causal_mask=False,
    ):
        value = query if value is None else value
        key = value if key is None else key

        # A mask that is only causal need not be built: the fused kernel knows it
        # before
        causal_only = use_causal_mask and attention_mask is None
        # after
        causal_only = (
            use_causal_mask
            and attention_mask is None
            and self._can_use_fused(return_attention_scores)
        )
        # end
        if use_causal_mask and not causal_only:
            causal_mask = self._compute_causal_mask(query, key)
            attention_mask = causal_mask if attention_mask is None else causal_mask & attention_mask

        q = self.query_dense(query).unflatten(-1, (self.num_heads, self.key_dim)).transpose(1, 2)
        k = self.key_dense(key).unflatten(-1, (self.num_heads, self.key_dim)).transpose(1, 2)
        v = self.value_dense(value).unflatten(-1, (self.num_heads, self.value_dim)).transpose(1, 2)
        output, scores = self._compute_attention(
            q, k, v, attention_mask, causal_only, return_attention_scores
        )
        output = self.output_dense(output.transpose(1, 2).flatten(2))
        return (output, scores) if return_attention_scores else output


class DecoderSelfAttention(nn.Module):
    """The self-attention of a decoder block, with its residual and norm."""

    def __init__(self, embed_dim, num_heads, dropout=0.1):
        super().__init__()
        self.attention = MultiHeadAttention(
            num_heads, embed_dim // num_heads, embed_dim, dropout=dropout
        )
        self.norm = nn.LayerNorm(embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        attended = self.attention(x, x, use_causal_mask=True)
        return self.norm(x + self.dropout(attended))
