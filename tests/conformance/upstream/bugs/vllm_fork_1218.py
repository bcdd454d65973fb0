"""The attention of vision encoders, which has no cache, and such an encoder's layer."""

import torch
import torch.nn.functional as F
from torch import nn


class MultiHeadAttention(nn.Module):
    """Multi-headed attention without a cache, used for multimodal encoders."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = scale
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        assert self.num_heads % self.num_kv_heads == 0
        self.num_queries_per_kv = self.num_heads // self.num_kv_heads

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Input shape: batch_size x seq_len x hidden_size"""
        bsz, q_len, _ = query.size()
        kv_len = key.size(1)

        query = query.view(bsz, q_len, self.num_heads, self.head_size)
        key = key.view(bsz, kv_len, self.num_kv_heads, self.head_size)
        value = value.view(bsz, kv_len, self.num_kv_heads, self.head_size)

        if (num_repeat := self.num_queries_per_kv) > 1:
            # Handle MQA and GQA
            key = torch.repeat_interleave(key, num_repeat, dim=2)
            value = torch.repeat_interleave(value, num_repeat, dim=2)

        # before
        out = F.scaled_dot_product_attention(query, key, value, scale=self.scale)
        # after
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        out = F.scaled_dot_product_attention(query, key, value, scale=self.scale)
        out = out.transpose(1, 2)
        # end
        return out.reshape(bsz, q_len, -1)


class EncoderAttention(nn.Module):
    """The attention of a layer of the encoder, with a fused projection."""

    def __init__(self, hidden_size: int, num_attention_heads: int, qkv_bias: bool = True):
        super().__init__()
        self.head_dim = hidden_size // num_attention_heads
        self.scale = self.head_dim**-0.5
        self.qkv_proj = nn.Linear(hidden_size, 3 * hidden_size, bias=qkv_bias)
        self.out_proj = nn.Linear(hidden_size, hidden_size)
        self.attn = MultiHeadAttention(num_attention_heads, self.head_dim, self.scale)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        query_states, key_states, value_states = self.qkv_proj(hidden_states).chunk(3, dim=-1)
        out = self.attn(query_states, key_states, value_states)
        return self.out_proj(out)
