"""The attention of a language model that normalizes its queries and keys, with a fused projection."""

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, x):
        variance = x.pow(2).mean(dim=-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.variance_epsilon))


class RotaryEmbedding(nn.Module):
    """Rotates queries and keys, of shape (batch, length, heads * head_size), by the positions of the tokens."""

    def __init__(self, head_size, base=10000.0):
        super().__init__()
        self.head_size = head_size
        inv_freq = 1.0 / (base ** (torch.arange(0, head_size, 2).float() / head_size))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def rotate(self, x, cos, sin):
        shape = x.shape
        x = x.view(*shape[:-1], -1, self.head_size)
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1).view(shape)

    def forward(self, positions, query, key):
        freqs = positions.float()[:, None] * self.inv_freq.float()
        cos, sin = (f(freqs).to(query.dtype)[None, :, None] for f in (torch.cos, torch.sin))
        return self.rotate(query, cos, sin), self.rotate(key, cos, sin)


class Olmo2Attention(nn.Module):
    """
    This is the attention block, where the output is computed as ``Attention(LN(x))`` in ``MLP(LN(x + Attention(LN(x))))``
    (plus another skip connection).
    """

    def __init__(self, hidden_size, num_heads, num_kv_heads=None, rope_theta=10000.0):
        super().__init__()
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads or num_heads
        assert hidden_size % num_heads == 0
        self.head_dim = hidden_size // num_heads
        self.q_size = self.num_heads * self.head_dim
        self.kv_size = self.num_kv_heads * self.head_dim

        # Attention input projection. Projects x -> (q, k, v)
        self.qkv_proj = nn.Linear(hidden_size, self.q_size + 2 * self.kv_size, bias=False)
        self.q_norm = RMSNorm(self.q_size)
        self.k_norm = RMSNorm(self.kv_size)
        self.rotary_emb = RotaryEmbedding(self.head_dim, rope_theta)
        self.scaling = self.head_dim**-0.5
        # Attention output projection.
        self.o_proj = nn.Linear(self.q_size, hidden_size, bias=False)

    def attn(self, q, k, v):
        q, k, v = (
            x.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)
            for x, heads in ((q, self.num_heads), (k, self.num_kv_heads), (v, self.num_kv_heads))
        )
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=self.scaling, enable_gqa=True
        )
        return out.transpose(1, 2).flatten(2)

    def forward(self, hidden_states):
        positions = torch.arange(hidden_states.shape[1], device=hidden_states.device)
        qkv = self.qkv_proj(hidden_states)
        # before
        q, k, v = qkv.chunk(chunks=3, dim=-1)
        # after
        q, k, v = qkv.split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        # end
        q, k = self.q_norm(q), self.k_norm(k)
        q, k = self.rotary_emb(positions, q, k)
        return self.o_proj(self.attn(q, k, v))
