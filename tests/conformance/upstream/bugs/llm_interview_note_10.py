"""Multi-query attention, from notes for job interviews."""

import torch
from torch import nn


class MutiQueryAttention(torch.nn.Module):
    """Multi-query attention: all heads of queries share one head of keys and values."""

    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads

        # the projections of Q, K and V; K and V are projected to one head
        self.q_linear = nn.Linear(hidden_size, hidden_size)
        self.k_linear = nn.Linear(hidden_size, self.head_dim)
        self.v_linear = nn.Linear(hidden_size, self.head_dim)
        self.o_linear = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_state, attention_mask=None):
        batch_size = hidden_state.size()[0]

        query = self.q_linear(hidden_state)
        key = self.k_linear(hidden_state)
        value = self.v_linear(hidden_state)

        query = self.split_head(query)
        key = self.split_head(key, 1)
        value = self.split_head(value, 1)

        attention_scores = torch.matmul(query, key.transpose(-1, -2))
        attention_scores = attention_scores / torch.sqrt(torch.tensor(float(self.head_dim)))
        if attention_mask is not None:
            attention_scores = attention_scores.masked_fill(attention_mask == 0, float("-inf"))
        attention_probs = torch.softmax(attention_scores, dim=-1)

        output = torch.matmul(attention_probs, value)
        # concatenate the heads
        # before
        output = output.transpose(-1, -2).contiguous()
        # after
        output = output.transpose(-2, -3).contiguous()
        # end
        output = output.view(batch_size, -1, self.head_dim * self.num_heads)
        return self.o_linear(output)

    def split_head(self, x, head_num=None):
        batch_size = x.size()[0]
        head_num = head_num or self.num_heads
        return x.view(batch_size, -1, head_num, self.head_dim).transpose(1, 2)
