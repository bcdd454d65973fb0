"""A layer of linear attention in a decoder, for batches that are padded on the left."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


class LinearAttention(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int, do_feature_map_norm: bool = True):
        super().__init__()
        self.num_heads = num_heads
        self.do_feature_map_norm = do_feature_map_norm
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        """attention_mask: 1 at real tokens and 0 at padding, of shape (batch, tokens)."""
        batch_size, q_len, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(batch_size, q_len, self.num_heads, -1)
        k = self.k_proj(hidden_states).view(batch_size, q_len, self.num_heads, -1)
        v = self.v_proj(hidden_states).view(batch_size, q_len, self.num_heads, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1

        if attention_mask is not None:
            # before
            v = v * attention_mask[:, :, None, None]
            # after
            v = v * attention_mask[:, :, None, None]
            k = k * attention_mask[:, :, None, None]
            # end

        scores = torch.einsum("bihd,bjhd->bhij", q, k).tril()
        o = torch.einsum("bhij,bjhd->bihd", scores, v)
        if self.do_feature_map_norm:
            z = torch.einsum("bihd,bihd->bih", q, k.cumsum(1))
            o = o / (z.unsqueeze(-1) + 1e-10)
        return self.o_proj(o.reshape(batch_size, q_len, -1))
