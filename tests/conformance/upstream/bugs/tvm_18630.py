"""Attention over a KV cache: what is new and what is cached are attended apart, then merged.

For a step of new tokens, `attention_prefill_ragged` covers the keys and values of the step itself,
and `attention_prefill` those that the cache already holds. Each returns its output with the
log-sum-exp of its scores, by which `merge_state_inplace` weighs the two.
"""

from typing import Optional

import torch
from torch import nn

MASK_VALUE = -5e4


def rope(x: torch.Tensor, position: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotates x, of shape (batch, seq_len, heads, head_dim), halves of a head against each other."""
    d = x.shape[-1]
    freq = position[:, None].float() / theta ** (torch.arange(0, d, 2, device=x.device).float() / d)
    cos, sin = freq.cos()[:, None].to(x.dtype), freq.sin()[:, None].to(x.dtype)
    lower, upper = x.chunk(2, dim=-1)
    return torch.cat([lower * cos - upper * sin, upper * cos + lower * sin], dim=-1)


def causal_mask(q_position, k_position):
    """Which keys a query may see, (qo_len, kv_len)."""
    return k_position[None, :] <= q_position[:, None]


def sliding_window_mask(q_position, k_position, sliding_window_size):
    """The keys within the window of a query: itself and the `sliding_window_size - 1` before it."""
    return k_position[None, :] > q_position[:, None] - sliding_window_size


def attention_with_lse(q, k, v, mask, sm_scale):
    """Returns the output (batch, qo_len, heads, head_dim) and the lse (batch, qo_len, heads)."""
    group_size = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group_size, dim=2), v.repeat_interleave(group_size, dim=2)
    s = torch.einsum("bqhd,bkhd->bqhk", q, k) * sm_scale
    s = torch.where(mask[:, None, :], s, MASK_VALUE)
    lse = torch.logsumexp(s, dim=-1)
    return torch.einsum("bqhk,bkhd->bqhd", (s - lse[..., None]).exp(), v), lse


def merge_state_inplace(o, lse, o_other, lse_other):
    """Merges two partial attentions of the same queries."""
    lse_max = torch.maximum(lse, lse_other)
    scale, scale_other = (lse - lse_max).exp(), (lse_other - lse_max).exp()
    total = scale + scale_other
    return o * (scale / total)[..., None] + o_other * (scale_other / total)[..., None]


class PagedKVCacheAttention(nn.Module):
    """
    An attention layer with grouped queries, rotary positions and, on demand, a sliding window.

    Parameters
    ----------
    hidden_size : int
        The width of the model.
    num_attention_heads, num_key_value_heads : int
        The number of heads of the queries, and of the keys and values.
    sliding_window_size : Optional[int]
        The number of tokens that a token sees, itself included. None: all tokens up to it.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        num_key_value_heads: int,
        sliding_window_size: Optional[int] = None,
        rope_theta: float = 10000.0,
    ):
        super().__init__()
        self.num_qo_heads, self.num_kv_heads = num_attention_heads, num_key_value_heads
        self.head_dim = hidden_size // num_attention_heads
        self.sm_scale = self.head_dim**-0.5
        self.sliding_window_size = sliding_window_size
        self.rope_theta = rope_theta
        qkv_heads = num_attention_heads + 2 * num_key_value_heads
        self.qkv_proj = nn.Linear(hidden_size, qkv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_attention_heads * self.head_dim, hidden_size, bias=False)

    def attention_prefill_ragged(self, q, k, v, position):
        """Attention of the new tokens to each other."""
        mask = causal_mask(position, position)
        # before
        return attention_with_lse(q, k, v, mask, self.sm_scale)
        # after
        if self.sliding_window_size is not None:
            mask = mask & sliding_window_mask(position, position, self.sliding_window_size)
        return attention_with_lse(q, k, v, mask, self.sm_scale)
        # end

    def attention_prefill(self, q, k_cache, v_cache, position):
        """Attention of the new tokens to the cache."""
        cached = torch.arange(k_cache.shape[1], device=q.device)
        mask = causal_mask(position, cached)
        if self.sliding_window_size is not None:
            mask = mask & sliding_window_mask(position, cached, self.sliding_window_size)
        return attention_with_lse(q, k_cache, v_cache, mask, self.sm_scale)

    def forward(
        self,
        hidden_states: torch.Tensor,
        kv_cache: Optional[tuple[torch.Tensor, torch.Tensor]] = None,
    ):
        """Returns the output, and the cache with the new tokens appended."""
        b, s, _ = hidden_states.shape
        qkv = self.qkv_proj(hidden_states).reshape(b, s, -1, self.head_dim)
        q, k, v = qkv.split([self.num_qo_heads, self.num_kv_heads, self.num_kv_heads], dim=2)
        start = 0 if kv_cache is None else kv_cache[0].shape[1]
        position = torch.arange(start, start + s, device=q.device)
        q, k = rope(q, position, self.rope_theta), rope(k, position, self.rope_theta)

        o, lse = self.attention_prefill_ragged(q, k, v, position)
        if kv_cache is not None:
            o_cross, lse_cross = self.attention_prefill(q, *kv_cache, position)
            o = merge_state_inplace(o, lse, o_cross, lse_cross)
            k, v = torch.cat([kv_cache[0], k], dim=1), torch.cat([kv_cache[1], v], dim=1)
        return self.o_proj(o.reshape(b, s, -1)), (k, v)
