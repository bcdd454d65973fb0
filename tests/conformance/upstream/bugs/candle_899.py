"""The self-attention of the T5 decoder: a learned bias for the distance between two tokens, and no scale."""

import math
from typing import Optional

import torch
from torch import Tensor, nn

KvCache = tuple[Tensor, Tensor]


class T5Attention(nn.Module):
    """
    `forward` returns the output and the keys and values, which the next call takes to go on from there.

    The scores are not divided by the square root of d_kv: the initial queries are smaller by that factor.
    """

    def __init__(
        self,
        d_model: int,
        d_kv: int,
        num_heads: int,
        is_decoder: bool = True,
        relative_attention_num_buckets: int = 32,
        relative_attention_max_distance: int = 128,
    ):
        super().__init__()
        self.n_heads = num_heads
        self.d_kv = d_kv
        self.is_decoder = is_decoder
        self.num_buckets = relative_attention_num_buckets
        self.max_distance = relative_attention_max_distance

        inner_dim = num_heads * d_kv
        self.q = nn.Linear(d_model, inner_dim, bias=False)
        self.k = nn.Linear(d_model, inner_dim, bias=False)
        self.v = nn.Linear(d_model, inner_dim, bias=False)
        self.o = nn.Linear(inner_dim, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(self.num_buckets, num_heads)
        nn.init.normal_(self.q.weight, std=(d_model * d_kv) ** -0.5)

    def _relative_bucket(self, relative_position: Tensor) -> Tensor:
        """Half of the buckets are for one distance each, the others for ranges that grow up to max_distance."""
        num_buckets = self.num_buckets
        if self.is_decoder:
            first_bucket = 0
            distance = (-relative_position).clamp(min=0)
        else:
            num_buckets //= 2
            first_bucket = (relative_position > 0).long() * num_buckets
            distance = relative_position.abs()

        max_exact = num_buckets // 2
        growth = (distance.clamp(min=1).float() / max_exact).log() / math.log(
            self.max_distance / max_exact
        )
        far = max_exact + (growth * (num_buckets - max_exact)).long()
        far = far.clamp(max=num_buckets - 1)
        return first_bucket + torch.where(distance < max_exact, distance, far)

    def _position_bias(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        # before
        query_position = torch.arange(q_len, device=device)
        # after
        query_position = torch.arange(kv_len - q_len, kv_len, device=device)
        # end
        key_position = torch.arange(kv_len, device=device)
        relative_position = key_position[None, :] - query_position[:, None]
        bias = self.relative_attention_bias(self._relative_bucket(relative_position))
        return bias.permute(2, 0, 1).unsqueeze(0)

    def _split(self, xs: Tensor) -> Tensor:
        b_sz, seq_len, _ = xs.shape
        return xs.view(b_sz, seq_len, self.n_heads, self.d_kv).transpose(1, 2)

    def forward(self, xs: Tensor, kv_cache: Optional[KvCache] = None) -> tuple[Tensor, KvCache]:
        b_sz, q_len, _ = xs.shape
        q, k, v = self._split(self.q(xs)), self._split(self.k(xs)), self._split(self.v(xs))
        if kv_cache is not None:
            prev_k, prev_v = kv_cache
            k = torch.cat([prev_k, k], dim=2)
            v = torch.cat([prev_v, v], dim=2)
        kv_len = k.shape[2]

        scores = q @ k.transpose(2, 3)
        scores = scores + self._position_bias(q_len, kv_len, xs.device)
        if self.is_decoder:
            later = torch.ones(q_len, kv_len, dtype=torch.bool, device=xs.device).triu(
                kv_len - q_len + 1
            )
            scores = scores.masked_fill(later, -math.inf)

        attn_weights = torch.softmax(scores, dim=-1)
        attn_output = (
            (attn_weights @ v).transpose(1, 2).reshape(b_sz, q_len, self.n_heads * self.d_kv)
        )
        return self.o(attn_output), (k, v)
