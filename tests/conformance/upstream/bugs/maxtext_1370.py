"""Multi-Head Latent Attention (MLA), as in DeepSeek: keys and values come from a small latent."""

from typing import Optional

import torch
from torch import nn

DEFAULT_MASK_VALUE = -0.7 * float(torch.finfo(torch.float32).max)


class RMSNorm(nn.Module):
    """RMS normalization."""

    def __init__(self, num_features: int, epsilon: float = 1e-6):
        super().__init__()
        self.epsilon = epsilon
        self.scale = nn.Parameter(torch.ones(num_features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean2 = x.square().mean(-1, keepdim=True)
        return x * torch.rsqrt(mean2 + self.epsilon) * self.scale


class RotaryEmbedding(nn.Module):
    """Rotates neighbouring features of queries and keys.

    Attributes:
      embedding_dims: The number of features that are rotated.
      max_timescale: The slowest rotation.
    """

    def __init__(self, embedding_dims: int, max_timescale: float = 10_000.0):
        super().__init__()
        self.embedding_dims = embedding_dims
        self.max_timescale = max_timescale

    def forward(self, inputs: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """inputs: [batch, length, heads, embedding_dims]. position: [batch, length]."""
        fraction = torch.arange(0, self.embedding_dims, 2, device=inputs.device).float()
        timescale = self.max_timescale ** (fraction / self.embedding_dims)
        sinusoid = (position[..., None] / timescale)[:, :, None]
        sin, cos = sinusoid.sin().to(inputs.dtype), sinusoid.cos().to(inputs.dtype)
        even, odd = inputs[..., 0::2], inputs[..., 1::2]
        return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)


class MLA(nn.Module):
    """Multi-Head Latent Attention.

    Attributes:
      emb_dim: The width of the model.
      num_query_heads: The number of heads.
      q_lora_rank: The rank of the queries; 0 for a full projection.
      kv_lora_rank: The rank of the latent of the keys and values.
      qk_nope_head_dim: The features of queries and keys that are not rotated.
      qk_rope_head_dim: The features that are; one such key serves all heads.
      v_head_dim: The features of the values.
    """

    def __init__(
        self,
        emb_dim: int,
        num_query_heads: int,
        q_lora_rank: int = 0,
        kv_lora_rank: int = 512,
        qk_nope_head_dim: int = 128,
        qk_rope_head_dim: int = 64,
        v_head_dim: int = 128,
    ):
        super().__init__()
        self.num_query_heads = num_query_heads
        self.q_lora_rank, self.kv_lora_rank = q_lora_rank, kv_lora_rank
        self.qk_nope_head_dim, self.qk_rope_head_dim = qk_nope_head_dim, qk_rope_head_dim
        self.v_head_dim = v_head_dim
        self.qk_head_dim = qk_nope_head_dim + qk_rope_head_dim
        self.softmax_scale = self.qk_head_dim**-0.5

        if q_lora_rank == 0:
            self.query = nn.Linear(emb_dim, num_query_heads * self.qk_head_dim, bias=False)
        else:
            self.wq_a = nn.Linear(emb_dim, q_lora_rank, bias=False)
            self.q_norm = RMSNorm(q_lora_rank)
            self.wq_b = nn.Linear(q_lora_rank, num_query_heads * self.qk_head_dim, bias=False)
        self.wkv_a = nn.Linear(emb_dim, kv_lora_rank + qk_rope_head_dim, bias=False)
        self.kv_norm = RMSNorm(kv_lora_rank)
        kv_features = num_query_heads * (qk_nope_head_dim + v_head_dim)
        self.wkv_b = nn.Linear(kv_lora_rank, kv_features, bias=False)
        self.rotary_embedding = RotaryEmbedding(qk_rope_head_dim)
        self.out = nn.Linear(num_query_heads * v_head_dim, emb_dim, bias=False)

    def mla_query_projection(self, inputs_q: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        q = (
            self.query(inputs_q)
            if self.q_lora_rank == 0
            else self.wq_b(self.q_norm(self.wq_a(inputs_q)))
        )
        q = q.unflatten(-1, (self.num_query_heads, self.qk_head_dim))
        q_nope, q_pe = q.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
        query = torch.cat([q_nope, self.rotary_embedding(q_pe, position)], dim=-1)
        # before
        return query / self.softmax_scale
        # after
        return query * self.softmax_scale
        # end

    def mla_kv_projection(self, inputs_kv: torch.Tensor, position: torch.Tensor):
        low_rank = self.wkv_a(inputs_kv)
        sizes = [self.kv_lora_rank, self.qk_rope_head_dim]
        low_rank_main, low_rank_rope = low_rank.split(sizes, dim=-1)
        key_rope = self.rotary_embedding(low_rank_rope[:, :, None], position)
        kv_out = self.wkv_b(self.kv_norm(low_rank_main)).unflatten(-1, (self.num_query_heads, -1))
        key_nope, value = kv_out.split([self.qk_nope_head_dim, self.v_head_dim], dim=-1)
        key_rope = key_rope.expand(-1, -1, self.num_query_heads, -1)
        return torch.cat([key_nope, key_rope], dim=-1), value

    def forward(
        self, inputs: torch.Tensor, inputs_positions: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        """inputs: [batch, length, emb_dim]. inputs_positions: [batch, length], 0, 1, … by default."""
        length = inputs.shape[1]
        if inputs_positions is None:
            inputs_positions = torch.arange(length, device=inputs.device)[None]
        query = self.mla_query_projection(inputs, inputs_positions)
        key, value = self.mla_kv_projection(inputs, inputs_positions)

        attn_weights = torch.einsum("btnd,bsnd->bnts", query, key)
        attn_weights = attn_weights.to(torch.promote_types(attn_weights.dtype, torch.float32))
        causal = torch.ones(length, length, dtype=torch.bool, device=inputs.device).tril()
        attn_weights = torch.where(causal, attn_weights, DEFAULT_MASK_VALUE)
        probs = attn_weights.softmax(dim=-1).to(value.dtype)
        return self.out(torch.einsum("bnts,bsnd->btnd", probs, value).flatten(2))
