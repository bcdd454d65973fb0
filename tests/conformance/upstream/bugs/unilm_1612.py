"""The sliding window attention of the first half of a decoder that caches only once."""

import torch
from torch import nn


def flash_attn_func(q, k, v, causal=False, window_size=(-1, -1)):
    """
    Attention on tensors of shape (bsz, len, heads, head_dim). The last query stands at the last key.

    window_size: how many keys before and after its own position a query sees; -1 means all.
    """
    tgt_len, src_len = q.size(1), k.size(1)
    positions = torch.arange(src_len, device=q.device)
    distance = positions[src_len - tgt_len :, None] - positions
    keep = torch.ones_like(distance, dtype=torch.bool)
    if causal:
        keep = keep & (distance >= 0)
    if window_size[0] >= 0:
        keep = keep & (distance <= window_size[0])
    if window_size[1] >= 0:
        keep = keep & (-distance <= window_size[1])
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.size(-1) ** -0.5
    weights = scores.masked_fill(~keep, float("-inf")).softmax(dim=-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def apply_rotary_emb(x, cos, sin):
    """Rotate pairs of neighbouring channels. x: (bsz, len, heads, head_dim). cos, sin: (len, head_dim / 2)."""
    cos, sin = cos[:, None], sin[:, None]
    x1, x2 = x[..., 0::2], x[..., 1::2]
    return torch.stack([x1 * cos - x2 * sin, x1 * sin + x2 * cos], dim=-1).flatten(-2)


class SlidingWindowAttention(nn.Module):
    """
    Args:
        dim: size of the model
        n_self_heads: number of heads
        sliding_window: number of tokens that a token sees, itself included
    """

    def __init__(self, dim, n_self_heads, sliding_window):
        super().__init__()
        self.num_heads = n_self_heads
        self.head_dim = dim // n_self_heads
        # before
        self.window_size = sliding_window - 1
        # after
        self.window_size = sliding_window
        # end
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x, rel_pos, incremental_state=None):
        """
        x: (bsz, len, dim). rel_pos: cos and sin of the positions of x.
        incremental_state: a dict with the keys and values of earlier calls, which is updated.
        """
        bsz, tgt_len, _ = x.size()
        q = self.q_proj(x).view(bsz, tgt_len, self.num_heads, self.head_dim)
        k = self.k_proj(x).view(bsz, tgt_len, self.num_heads, self.head_dim)
        v = self.v_proj(x).view(bsz, tgt_len, self.num_heads, self.head_dim)
        q = apply_rotary_emb(q, *rel_pos)
        k = apply_rotary_emb(k, *rel_pos)
        if incremental_state is not None:
            if "prev_key" in incremental_state:
                k = torch.cat([incremental_state["prev_key"], k], dim=1)
                v = torch.cat([incremental_state["prev_value"], v], dim=1)
            incremental_state["prev_key"] = k[:, -self.window_size :]
            incremental_state["prev_value"] = v[:, -self.window_size :]
        attn = flash_attn_func(q, k, v, causal=True, window_size=(self.window_size - 1, 0))
        return self.out_proj(attn.reshape(bsz, tgt_len, -1))
