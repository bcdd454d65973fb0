"""The attention of a model for fast fine-tuning, with a fallback where the fast kernels are not installed."""

from typing import Optional

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

try:
    from flash_attn import flash_attn_func

    HAS_FLASH_ATTENTION = True
except ImportError:
    HAS_FLASH_ATTENTION = False


class LlamaRotaryEmbedding(nn.Module):
    def __init__(self, dim, max_position_embeddings=2048, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        freqs = torch.outer(torch.arange(max_position_embeddings).float(), inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        self.register_buffer("cos_cached", emb.cos(), persistent=False)
        self.register_buffer("sin_cached", emb.sin(), persistent=False)

    def forward(self, x, seq_len):
        return self.cos_cached[:seq_len].to(x.dtype), self.sin_cached[:seq_len].to(x.dtype)


def fast_rope_embedding(Q, K, cos, sin):
    def rotate_half(x):
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((-x2, x1), dim=-1)

    return Q * cos + rotate_half(Q) * sin, K * cos + rotate_half(K) * sin


class LlamaAttention(nn.Module):
    """hidden_states: (bsz, q_len, hidden_size). attention_mask: None, or True where a query may see a key."""

    def __init__(
        self,
        hidden_size: int = 32,
        num_attention_heads: int = 4,
        num_key_value_heads: int = 2,
        max_position_embeddings: int = 128,
    ):
        super().__init__()
        self.num_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.num_key_value_groups = num_attention_heads // num_key_value_heads
        self.head_dim = hidden_size // num_attention_heads
        kv_size = num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.rotary_emb = LlamaRotaryEmbedding(self.head_dim, max_position_embeddings)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        bsz, q_len, _ = hidden_states.shape
        n_heads, n_groups = self.num_heads, self.num_key_value_groups
        n_kv_heads, head_dim = self.num_key_value_heads, self.head_dim

        Q = self.q_proj(hidden_states).view(bsz, q_len, n_heads, head_dim).transpose(1, 2)
        K = self.k_proj(hidden_states).view(bsz, q_len, n_kv_heads, head_dim).transpose(1, 2)
        V = self.v_proj(hidden_states).view(bsz, q_len, n_kv_heads, head_dim).transpose(1, 2)
        Q, K = fast_rope_embedding(Q, K, *self.rotary_emb(V, q_len))

        # Attention module
        if HAS_FLASH_ATTENTION and hidden_states.is_cuda and attention_mask is None:
            Q, K, V = Q.transpose(1, 2), K.transpose(1, 2), V.transpose(1, 2)
            A = flash_attn_func(Q, K, V, causal=True)
        else:
            # Grouped query attention
            K = K[:, :, None].expand(bsz, n_kv_heads, n_groups, q_len, head_dim)
            V = V[:, :, None].expand(bsz, n_kv_heads, n_groups, q_len, head_dim)
            K = K.reshape(bsz, n_heads, q_len, head_dim)
            V = V.reshape(bsz, n_heads, q_len, head_dim)
            # before
            is_causal = False
            # after
            is_causal = attention_mask is None
            # end
            A = scaled_dot_product_attention(Q, K, V, attn_mask=attention_mask, is_causal=is_causal)
            # Go back to (batch_size, seq_len, n_heads, head_dim)
            A = A.transpose(1, 2).contiguous()
        return self.o_proj(A.reshape(bsz, q_len, n_heads * head_dim))
