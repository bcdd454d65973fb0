"""The attention of a language model in a server that keeps the keys and values of a session."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def rope(x: Tensor, start_pos: int) -> Tensor:
    """Rotate (batch, heads, tokens, dim) by the positions from `start_pos` on."""
    half = x.shape[-1] // 2
    inv_freq = 10000.0 ** -(torch.arange(half, device=x.device).float() / half)
    positions = torch.arange(start_pos, start_pos + x.shape[-2], device=x.device).float()
    angles = torch.outer(positions, inv_freq)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class LlamaAttention(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size, bias=False)

    def causal_mask(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        """Return which keys each query may read."""
        ones = torch.ones(q_len, kv_len, dtype=torch.bool, device=device)
        # before
        return ones.tril(0)
        # after
        return ones.tril(kv_len - q_len)
        # end

    def forward(
        self, hidden_states: Tensor, kv_cache: Optional[tuple[Tensor, Tensor]] = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the output, and the keys and values of all tokens so far for the next call."""
        batch, q_len, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(batch, q_len, self.num_heads, -1).transpose(1, 2)
        k = self.k_proj(hidden_states).view(batch, q_len, self.num_kv_heads, -1).transpose(1, 2)
        v = self.v_proj(hidden_states).view(batch, q_len, self.num_kv_heads, -1).transpose(1, 2)

        start_pos = 0 if kv_cache is None else kv_cache[0].shape[2]
        q, k = rope(q, start_pos), rope(k, start_pos)
        if kv_cache is not None:
            k = torch.cat([kv_cache[0], k], dim=2)
            v = torch.cat([kv_cache[1], v], dim=2)
        kv_cache = (k, v)

        # a single new token reads all that is kept
        mask = None
        if q_len > 1:
            mask = self.causal_mask(q_len, k.shape[2], q.device)

        groups = self.num_heads // self.num_kv_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        output = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        output = output.transpose(1, 2).reshape(batch, q_len, -1)
        return self.o_proj(output), kv_cache
