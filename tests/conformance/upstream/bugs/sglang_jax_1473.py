"""Attention over the packed tokens of several requests, with rotary position embeddings."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def apply_rotary_emb(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, is_neox_style: bool
) -> torch.Tensor:
    """
    Args:
        x: [num_tokens, num_heads, head_size]
        cos: [num_tokens, head_size // 2]
        sin: [num_tokens, head_size // 2]
        is_neox_style: Whether to use the Neox-style or GPT-J-style rotary positional embeddings.
    """
    cos, sin = cos[:, None, :], sin[:, None, :]
    if is_neox_style:
        x1, x2 = x.chunk(2, dim=-1)
    else:
        x1, x2 = x[..., ::2], x[..., 1::2]
    o1 = x1 * cos - x2 * sin
    o2 = x2 * cos + x1 * sin
    if is_neox_style:
        return torch.cat((o1, o2), dim=-1)
    return torch.stack((o1, o2), dim=-1).flatten(-2)


class RotaryEmbedding:
    """Rotary Position Embedding."""

    def __init__(
        self,
        head_size: int,
        rotary_dim: int,
        max_position_embeddings: int,
        base: int,
        is_neox_style: bool,
    ):
        self.head_size = head_size
        self.rotary_dim = rotary_dim
        self.max_position_embeddings = max_position_embeddings
        self.base = base
        self.is_neox_style = is_neox_style
        self._inv_freq_np = 1.0 / (
            base ** (np.arange(0, rotary_dim, 2, dtype=np.float32) / rotary_dim)
        )  # shape: (rotary_dim // 2,)

    def __call__(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        positions = positions.flatten()  # [num_tokens]
        dtype = query.dtype

        # before
        inv_freq = torch.as_tensor(self._inv_freq_np, dtype=dtype, device=query.device)
        # after
        inv_freq = torch.as_tensor(self._inv_freq_np, dtype=torch.float32, device=query.device)
        # end
        freqs = positions.to(torch.float32)[:, None] * inv_freq

        cos, sin = freqs.cos().to(dtype), freqs.sin().to(dtype)
        return self._rotate(query, cos, sin), self._rotate(key, cos, sin)

    def _rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        shape = x.shape
        x = x.reshape(shape[0], -1, self.head_size)
        x_rot, x_pass = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        x_rot = apply_rotary_emb(x_rot, cos, sin, self.is_neox_style)
        return torch.cat((x_rot, x_pass), dim=-1).reshape(shape)


class LlamaAttention(nn.Module):
    """Attention of a decoder layer. The tokens of all requests of a batch are packed into one dimension."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        layer_id: int = 0,
        rope_theta: int = 10000,
        rope_is_neox_style: bool = True,
        max_position_embeddings: int = 8192,
        partial_rotary_factor: float = 1.0,
        attention_bias: bool = False,
        dtype: torch.dtype = torch.bfloat16,
    ):
        super().__init__()
        self.layer_id = layer_id
        self.q_head_num = num_heads
        self.kv_head_num = num_kv_heads
        self.head_dim = hidden_size // num_heads
        self.scaling = self.head_dim**-0.5

        def linear(n_in: int, n_out: int, bias: bool) -> nn.Linear:
            return nn.Linear(n_in, n_out, bias=bias, dtype=dtype)

        self.q_proj = linear(hidden_size, num_heads * self.head_dim, attention_bias)
        self.k_proj = linear(hidden_size, num_kv_heads * self.head_dim, attention_bias)
        self.v_proj = linear(hidden_size, num_kv_heads * self.head_dim, attention_bias)
        self.o_proj = linear(num_heads * self.head_dim, hidden_size, False)
        self.rotary_emb = RotaryEmbedding(
            head_size=self.head_dim,
            rotary_dim=int(partial_rotary_factor * self.head_dim),
            max_position_embeddings=max_position_embeddings,
            base=rope_theta,
            is_neox_style=rope_is_neox_style,
        )

    def forward(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, seq_lens: torch.Tensor
    ) -> torch.Tensor:
        """
        Args:
            positions: [num_tokens], the position of each token in its request
            hidden_states: [num_tokens, hidden_size]
            seq_lens: [num_requests], the numbers of tokens of the requests
        """
        q = self.q_proj(hidden_states)
        k = self.k_proj(hidden_states)
        v = self.v_proj(hidden_states)
        q, k = self.rotary_emb(positions, q, k)

        q = q.view(-1, self.q_head_num, self.head_dim).transpose(0, 1)
        k = k.view(-1, self.kv_head_num, self.head_dim).transpose(0, 1)
        v = v.view(-1, self.kv_head_num, self.head_dim).transpose(0, 1)

        request = torch.repeat_interleave(
            torch.arange(len(seq_lens), device=seq_lens.device), seq_lens
        )
        mask = (request[:, None] == request) & (positions[:, None] >= positions)
        attn = F.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=mask, scale=self.scaling, enable_gqa=True
        )[0]
        return self.o_proj(attn.transpose(0, 1).flatten(1))
