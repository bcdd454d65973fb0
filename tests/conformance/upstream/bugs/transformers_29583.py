"""A decoder's attention on batches that are padded on the left."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


class GPT2Attention(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int, max_position_embeddings: int = 128):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        # learned vectors for each position, added before the projections
        self.embed_positions = nn.Embedding(max_position_embeddings, hidden_size)

    def forward(self, hidden_states, attention_mask: Optional[torch.Tensor] = None):
        bsz, q_len, _ = hidden_states.shape
        if attention_mask is None:
            attention_mask = torch.ones(bsz, q_len, dtype=torch.long, device=hidden_states.device)
        # before
        cache_position = torch.arange(q_len, device=hidden_states.device)
        position_ids = cache_position.unsqueeze(0).expand(bsz, -1)
        # after
        position_ids = attention_mask.long().cumsum(-1) - 1
        position_ids = position_ids.masked_fill(attention_mask == 0, 1)
        # end
        hidden_states = hidden_states + self.embed_positions(position_ids)
        Q = self.q_proj(hidden_states).view(bsz, q_len, self.num_heads, -1).transpose(1, 2)
        K = self.k_proj(hidden_states).view(bsz, q_len, self.num_heads, -1).transpose(1, 2)
        V = self.v_proj(hidden_states).view(bsz, q_len, self.num_heads, -1).transpose(1, 2)
        causal = torch.ones(q_len, q_len, dtype=torch.bool, device=Q.device).tril()
        own = torch.eye(q_len, dtype=torch.bool, device=Q.device)
        mask = (causal & attention_mask.bool()[:, None, None, :]) | own
        A = F.scaled_dot_product_attention(Q, K, V, attn_mask=mask)
        A = A.transpose(1, 2).reshape(bsz, q_len, -1)
        return self.o_proj(A)
