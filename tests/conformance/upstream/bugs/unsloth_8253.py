"""A decoder's attention whose configuration has a sliding window."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


def run_attention(q, k, v, sliding_window: Optional[int] = None):
    if sliding_window is None or sliding_window <= 0:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    length = q.shape[-2]
    band = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
    band = band.triu(1 - sliding_window)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=band)


class MistralAttention(nn.Module):
    def __init__(
        self, hidden_size: int, num_heads: int, num_kv_heads: int, sliding_window: int = 4
    ):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = hidden_size // num_heads
        self.sliding_window = sliding_window
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size, bias=False)

    def forward(self, hidden_states):
        bsz, q_len, _ = hidden_states.shape
        Q = self.q_proj(hidden_states).view(bsz, q_len, self.num_heads, -1).transpose(1, 2)
        K = self.k_proj(hidden_states).view(bsz, q_len, self.num_kv_heads, -1).transpose(1, 2)
        V = self.v_proj(hidden_states).view(bsz, q_len, self.num_kv_heads, -1).transpose(1, 2)
        n_groups = self.num_heads // self.num_kv_heads
        K = K[:, :, None].expand(-1, -1, n_groups, -1, -1).flatten(1, 2)
        V = V[:, :, None].expand(-1, -1, n_groups, -1, -1).flatten(1, 2)
        # before
        A = run_attention(Q, K, V)
        # after
        A = run_attention(Q, K, V, sliding_window=self.sliding_window)
        # end
        A = A.transpose(1, 2).reshape(bsz, q_len, -1)
        return self.o_proj(A)
