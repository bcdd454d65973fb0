"""A penalty that grows with the distance instead of positions, steeper for some heads; one packed projection."""

import torch
from torch import nn


class AlibiAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, max_positions=64, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.qkv_proj = nn.Linear(embed_dim, 3 * embed_dim, bias=True)
        self.output = nn.Linear(embed_dim, embed_dim, bias=True)
        self.attention_dropout = nn.Dropout(dropout)
        slopes = torch.tensor([2.0 ** (-8.0 * (h + 1) / num_heads) for h in range(num_heads)])
        steps = torch.arange(max_positions)
        distance = (steps[None, :] - steps[:, None]).clamp(max=0)
        self.register_buffer("alibi", slopes[:, None, None] * distance[None])
        self.register_buffer("allowed", steps[None, :] <= steps[:, None])

    def forward(self, inputs):
        batch_size, seq_len, _ = inputs.size()
        shape = (batch_size, seq_len, 3, self.num_heads, self.head_dim)
        query, key, value = self.qkv_proj(inputs).reshape(shape).unbind(dim=2)
        logits = torch.einsum("bqhd,bkhd->bhqk", query, key).div(self.head_dim**0.5)
        logits = logits + self.alibi[:, :seq_len, :seq_len].to(logits.dtype)
        logits = torch.where(self.allowed[:seq_len, :seq_len], logits, float("-inf"))
        attention = self.attention_dropout(torch.softmax(logits, dim=-1))
        values = torch.einsum("bhqk,bkhd->bqhd", attention, value)
        values = values.flatten(2)
        return self.output(values)
