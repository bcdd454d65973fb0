"""The attention of a speech recognizer, with a fused kernel as an option."""

import math
from typing import Optional

import torch
from torch import nn


class MultiHeadedAttention(nn.Module):
    """Multi-Head Attention layer.

    Args:
        n_head (int): The number of heads.
        n_feat (int): The number of features.
        dropout_rate (float): Dropout rate of the attention weights.
        use_sdpa (bool): Whether to use the fused kernel of torch.
    """

    def __init__(self, n_head: int, n_feat: int, dropout_rate: float, use_sdpa: bool = True):
        super().__init__()
        assert n_feat % n_head == 0
        self.d_k = n_feat // n_head
        self.h = n_head
        self.linear_q = nn.Linear(n_feat, n_feat)
        self.linear_k = nn.Linear(n_feat, n_feat)
        self.linear_v = nn.Linear(n_feat, n_feat)
        self.linear_out = nn.Linear(n_feat, n_feat)
        self.use_sdpa = use_sdpa
        self.dropout_rate = dropout_rate
        self.dropout = nn.Dropout(p=dropout_rate)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """Turn (batch, time, features) into (batch, head, time, d_k)."""
        return x.view(x.size(0), x.size(1), self.h, self.d_k).transpose(1, 2)

    def forward_attention(self, value, scores, mask):
        """Weigh the values by scores of shape (batch, head, time1, time2)."""
        if mask is not None:
            mask = mask.unsqueeze(1).eq(0)
            scores = scores.masked_fill(mask, -float("inf"))
            attn = torch.softmax(scores, dim=-1).masked_fill(mask, 0.0)
        else:
            attn = torch.softmax(scores, dim=-1)
        return torch.matmul(self.dropout(attn), value)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """Attend; `mask` is of shape (batch, 1, time2) or (batch, time1, time2), True where to read."""
        q = self._split(self.linear_q(query))
        k = self._split(self.linear_k(key))
        v = self._split(self.linear_v(value))

        if not self.use_sdpa:
            scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
            output = self.forward_attention(v, scores, mask)
        else:
            # before
            dropout_p = self.dropout_rate
            # after
            dropout_p = self.dropout_rate if self.training else 0.0
            # end
            output = torch.nn.functional.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask.unsqueeze(1) if mask is not None else None,
                dropout_p=dropout_p,
                scale=1 / math.sqrt(self.d_k),
            )
        output = output.transpose(1, 2).contiguous().view(query.size(0), -1, self.h * self.d_k)
        return self.linear_out(output)
