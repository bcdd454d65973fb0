"""Attention for packed sequences: several short documents stand in one row, and no padding is needed."""

import math
from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn
from torch import Tensor


@dataclass
class AttentionConfig:
    hidden_size: int = 32
    num_heads: int = 4
    num_queries: int = 2
    dropout: float = 0.0
    causal: bool = True
    encoding: str = "alibi"


def create_block_ids(input_ids: Tensor, special_token: int) -> Tensor:
    """
    Number the documents of each row. A document ends with a special token, which belongs to it.
    """
    ends = (input_ids == special_token).long()
    return ends.cumsum(dim=-1) - ends


class ALiBi(nn.Module):
    """Adds to each score what grows with the distance. The distances of packed documents are those of the row."""

    def __init__(self, num_heads: int):
        super().__init__()
        slopes = 2.0 ** (-8.0 * torch.arange(1, num_heads + 1) / num_heads)
        self.register_buffer("slopes", slopes)

    def forward(self, scores: Tensor) -> Tensor:
        positions = torch.arange(scores.shape[-1], device=scores.device)
        distances = (positions[:, None] - positions[None, :]).abs()
        return scores - self.slopes[:, None, None] * distances


class NoPE(nn.Module):
    def forward(self, scores: Tensor) -> Tensor:
        return scores


class PraxisAttention(nn.Module):
    """
    Attention with grouped queries: `num_queries` heads of queries for each head of keys and values.
    """

    def __init__(self, config: Optional[AttentionConfig] = None):
        super().__init__()
        config = config or AttentionConfig()
        self.causal = config.causal
        self.num_query_heads = config.num_heads
        self.num_heads = config.num_heads // config.num_queries
        self.head_dim = config.hidden_size // config.num_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.key = nn.Linear(config.hidden_size, self.num_heads * self.head_dim, bias=False)
        self.value = nn.Linear(config.hidden_size, self.num_heads * self.head_dim, bias=False)
        self.output = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.encoding = ALiBi(config.num_heads) if config.encoding == "alibi" else NoPE()
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, inputs: Tensor, block_ids: Optional[Tensor] = None) -> Tensor:
        """
        inputs: (batch, seq_len, hidden_size)
        block_ids: (batch, seq_len), the document of each token
        """
        batch_size, seq_len, _ = inputs.shape
        q = self.query(inputs).view(batch_size, seq_len, self.num_query_heads, -1).transpose(1, 2)
        k = self.key(inputs).view(batch_size, seq_len, self.num_heads, -1).transpose(1, 2)
        v = self.value(inputs).view(batch_size, seq_len, self.num_heads, -1).transpose(1, 2)
        groups = self.num_query_heads // self.num_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)

        scores = self.encoding(torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.head_dim))
        mask = torch.ones(seq_len, seq_len, dtype=torch.bool, device=inputs.device)
        if self.causal:
            mask = mask.tril()
        # before
        mask = mask[None, None]
        # after
        mask = mask[None, None]
        if block_ids is not None:
            mask = mask & (block_ids[:, None, :, None] == block_ids[:, None, None, :])
        # end
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)

        weights = self.dropout(torch.softmax(scores, dim=-1))
        outputs = torch.matmul(weights, v).transpose(1, 2).reshape(batch_size, seq_len, -1)
        return self.output(outputs)
