"""Attention of each token to the tokens around it only (fast-transformers)."""

from math import sqrt

import torch
import torch.nn.functional as F
from torch.nn import Dropout, Linear, Module


class LocalAttention(Module):
    """Implement fast local attention where a query can only attend to neighboring keys.

    Arguments
    ---------
        local_context: The neighborhood to consider for local attention.
        softmax_temp: The temperature to use for the softmax attention. (default: 1/sqrt(d_keys))
        attention_dropout: The dropout rate to apply to the attention (default: 0.1)
    """

    def __init__(self, local_context, softmax_temp=None, attention_dropout=0.1):
        super().__init__()
        self.local_context = local_context
        self.softmax_temp = softmax_temp
        self.dropout = Dropout(attention_dropout)

    def _neighbors(self, x):
        """Return what is around each token of (N, L, ...), of shape (N, L, ..., local_context)."""
        before = self.local_context // 2
        after = self.local_context - before - 1
        x = torch.cat([x.new_zeros(x[:, :1].shape).repeat_interleave(before, 1), x], dim=1)
        x = torch.cat([x, x.new_zeros(x[:, :1].shape).repeat_interleave(after, 1)], dim=1)
        return x.unfold(1, self.local_context, 1)

    def forward(self, queries, keys, values, length_mask):
        """queries, keys, values: (N, L, H, E). length_mask: true at tokens, (N, L)."""
        softmax_temp = self.softmax_temp or 1.0 / sqrt(queries.shape[-1])
        QK = torch.einsum("nlhe,nlhec->nlhc", queries, self._neighbors(keys))
        masked = ~self._neighbors(length_mask)[:, :, None, :]
        # before
        QK = QK.masked_fill(masked, -float("inf"))
        # after
        QK = QK.masked_fill(masked, torch.finfo(QK.dtype).min)
        # end
        A = self.dropout(F.softmax(softmax_temp * QK, dim=-1))
        return torch.einsum("nlhc,nlhdc->nlhd", A, self._neighbors(values))


class LocalAttentionLayer(Module):
    """Project the queries, keys and values, attend locally, and project the result.

    Arguments
    ---------
        d_model: The input feature dimensionality
        n_heads: The number of heads
        local_context: The neighborhood to consider
    """

    def __init__(self, d_model, n_heads, local_context=5, attention_dropout=0.1):
        super().__init__()
        self.n_heads = n_heads
        self.inner_attention = LocalAttention(local_context, attention_dropout=attention_dropout)
        self.query_projection = Linear(d_model, d_model)
        self.key_projection = Linear(d_model, d_model)
        self.value_projection = Linear(d_model, d_model)
        self.out_projection = Linear(d_model, d_model)

    def forward(self, x, length_mask=None):
        """x: (N, L, d_model). length_mask: true at tokens, false at padding, (N, L)."""
        N, L, _ = x.shape
        if length_mask is None:
            length_mask = torch.ones(N, L, dtype=torch.bool, device=x.device)
        queries = self.query_projection(x).view(N, L, self.n_heads, -1)
        keys = self.key_projection(x).view(N, L, self.n_heads, -1)
        values = self.value_projection(x).view(N, L, self.n_heads, -1)
        new_values = self.inner_attention(queries, keys, values, length_mask.bool())
        return self.out_projection(new_values.reshape(N, L, -1))
