"""The self-attention of an encoder in which padding neither attends nor is attended to."""

import math
from typing import Optional

import torch
from torch import nn


class DebertaSelfAttention(nn.Module):
    def __init__(self, hidden_size: int, num_attention_heads: int, dropout_prob: float = 0.1):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.query_proj = nn.Linear(hidden_size, hidden_size)
        self.key_proj = nn.Linear(hidden_size, hidden_size)
        self.value_proj = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(dropout_prob)

    def transpose_for_scores(self, x: torch.Tensor) -> torch.Tensor:
        x = x.view(x.size(0), x.size(1), self.num_attention_heads, self.attention_head_size)
        return x.permute(0, 2, 1, 3)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        query_layer = self.transpose_for_scores(self.query_proj(hidden_states))
        key_layer = self.transpose_for_scores(self.key_proj(hidden_states))
        value_layer = self.transpose_for_scores(self.value_proj(hidden_states))
        scale = math.sqrt(self.attention_head_size)
        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2)) / scale
        if attention_mask is not None:
            extended = attention_mask.bool()[:, None, None, :]
            attention_mask = ~(extended & extended.transpose(-1, -2))
            attention_scores = attention_scores.masked_fill(
                attention_mask, torch.finfo(query_layer.dtype).min
            )
        attention_probs = nn.functional.softmax(attention_scores, dim=-1)
        if attention_mask is not None:
            # before
            attention_probs.masked_fill(attention_mask, 0)
            # after
            attention_probs = attention_probs.masked_fill(attention_mask, 0)
            # end
        attention_probs = self.dropout(attention_probs)
        context_layer = torch.matmul(attention_probs, value_layer)
        context_layer = context_layer.permute(0, 2, 1, 3).contiguous()
        return context_layer.flatten(2)
