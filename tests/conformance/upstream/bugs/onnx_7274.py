"""Grouped-query attention, with the keys and values repeated for the query heads."""

import torch
from torch import nn


class GroupedQueryAttention(nn.Module):
    def __init__(self, hidden_size: int, q_num_heads: int, kv_num_heads: int):
        super().__init__()
        assert q_num_heads % kv_num_heads == 0
        self.q_num_heads = q_num_heads
        self.kv_num_heads = kv_num_heads
        self.head_size = hidden_size // q_num_heads
        self.q_proj = nn.Linear(hidden_size, q_num_heads * self.head_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, kv_num_heads * self.head_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, kv_num_heads * self.head_size, bias=False)
        self.o_proj = nn.Linear(q_num_heads * self.head_size, hidden_size, bias=False)

    def forward(self, X):
        B, S, _ = X.shape
        Q = self.q_proj(X).reshape(B, S, self.q_num_heads, self.head_size).transpose(1, 2)
        K = self.k_proj(X).reshape(B, S, self.kv_num_heads, self.head_size).transpose(1, 2)
        V = self.v_proj(X).reshape(B, S, self.kv_num_heads, self.head_size).transpose(1, 2)
        seq_reps = self.q_num_heads // self.kv_num_heads
        # before
        K = torch.tile(K, (1, seq_reps, 1, 1))
        V = torch.tile(V, (1, seq_reps, 1, 1))
        # after
        K = torch.repeat_interleave(K, seq_reps, dim=1)
        V = torch.repeat_interleave(V, seq_reps, dim=1)
        # end
        scale = self.head_size**-0.25
        QKt = torch.matmul(Q * scale, K.transpose(2, 3) * scale)
        mask = torch.tril(torch.ones(S, S, dtype=torch.bool, device=X.device))
        QKt = torch.where(mask, QKt, -torch.inf)
        Y = torch.matmul(torch.softmax(QKt, dim=-1), V)
        return self.o_proj(Y.transpose(1, 2).reshape(B, S, -1))
