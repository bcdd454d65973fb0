"""The reference of the caches of language models: what a step writes, reads and may attend to."""

from dataclasses import dataclass
from enum import Enum
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


class MaskKind(Enum):
    NONE = 0  # every query sees every key of the read window
    CAUSAL = 1  # as many queries as keys, each sees the keys up to its own
    EXPLICIT = 2  # a mask is given


@dataclass
class AttendSpec:
    kind: MaskKind
    mask: Optional[torch.Tensor] = None  # bool, True where a key is attended to


class ContiguousCache:
    """Keys and values of all tokens so far, one after the other: (batch, kv_heads, max_length, head_dim)."""

    def __init__(self, max_length: int):
        self.max_length = max_length
        self.k: Optional[torch.Tensor] = None
        self.v: Optional[torch.Tensor] = None
        self.length = 0

    def update_and_fetch(self, k: torch.Tensor, v: torch.Tensor):
        """Write the tokens of a step, and return the keys and values to read and how to attend to them."""
        q_len = k.shape[2]
        total = self.length + q_len
        if total > self.max_length:
            raise ValueError(f"{total} tokens do not fit in a cache of {self.max_length}")
        if self.k is None:
            shape = (*k.shape[:2], self.max_length, k.shape[3])
            self.k, self.v = k.new_zeros(shape), v.new_zeros(shape)
        self.k[:, :, self.length : total] = k
        self.v[:, :, self.length : total] = v
        self.length = total
        return self.k[:, :, :total], self.v[:, :, :total], self._spec(q_len, total, k.device)

    def _spec(self, q_len: int, total: int, device: torch.device) -> AttendSpec:
        if q_len == 1:
            return AttendSpec(MaskKind.NONE)
        # before
        return AttendSpec(MaskKind.CAUSAL)
        # after
        if q_len == total:
            return AttendSpec(MaskKind.CAUSAL)
        # a continuation: the new tokens are the last of the read window
        mask = torch.ones(q_len, total, dtype=torch.bool, device=device)
        return AttendSpec(MaskKind.EXPLICIT, mask.tril(diagonal=total - q_len))
        # end


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec: AttendSpec, scale: float
) -> torch.Tensor:
    """Attention of a step, (batch, heads, q_len, head_dim)."""
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=spec.mask,
        is_causal=spec.kind is MaskKind.CAUSAL,
        scale=scale,
        enable_gqa=True,
    )


class CachedAttention(nn.Module):
    """Attention that reads its keys and values from a cache."""

    def __init__(self, dim: int, n_heads: int, n_kv_heads: int, max_length: int = 128):
        super().__init__()
        self.head_dim = dim // n_heads
        self.max_length = max_length
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)

    def forward(self, x: torch.Tensor, cache: Optional[ContiguousCache] = None):
        """Return the output and the cache, to be given with the next tokens."""
        if cache is None:
            cache = ContiguousCache(self.max_length)
        q, k, v = (
            proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for proj in (self.wq, self.wk, self.wv)
        )
        k, v, spec = cache.update_and_fetch(k, v)
        out = attend(q, k, v, spec, self.head_dim**-0.5)
        return self.wo(out.transpose(1, 2).flatten(2)), cache
