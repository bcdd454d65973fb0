"""An encoder's attention; in attention_mask, 1 marks real tokens and 0 marks padding."""

import math

import torch
from torch import nn


class EncoderSelfAttention(nn.Module):
    def __init__(self, hidden_size, num_attention_heads, dropout=0.1):
        super().__init__()
        self.num_heads = num_attention_heads
        self.head_size = hidden_size // num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def split_heads(self, tensor):
        batch, length, _ = tensor.shape
        return tensor.view(batch, length, self.num_heads, self.head_size).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask=None):
        query_layer = self.split_heads(self.query(hidden_states))
        key_layer = self.split_heads(self.key(hidden_states))
        value_layer = self.split_heads(self.value(hidden_states))
        scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        scores = scores / math.sqrt(self.head_size)
        if attention_mask is not None:
            padding = attention_mask[:, None, None, :] == 0
            scores = scores.masked_fill(padding, torch.finfo(scores.dtype).min)
        probs = nn.functional.softmax(scores, dim=-1)
        probs = self.dropout(probs)
        context = torch.matmul(probs, value_layer)
        context = context.permute(0, 2, 1, 3).contiguous()
        context = context.view(*hidden_states.shape)
        return self.dense(context)
