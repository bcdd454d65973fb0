"""Attention whose scores are modified by functions of a score and its indices, with linear biases as one of them."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def generate_alibi_bias(H: int) -> ScoreMod:
    """Returns an alibi bias score_mod given the number of heads H

    Args:
        H: number of heads

    Returns:
        alibi_bias: alibi bias score_mod
    """

    def alibi_mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        scale = torch.exp2(-((h + 1) * 8.0 / H))
        # before
        bias = (q_idx - kv_idx) * scale
        # after
        bias = (kv_idx - q_idx) * scale
        # end
        return score + bias

    return alibi_mod


def generate_tanh_softcap(soft_cap: float) -> ScoreMod:
    """Returns a score_mod that keeps the scores between -soft_cap and soft_cap"""

    def tanh_softcap(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return soft_cap * torch.tanh(score / soft_cap)

    return tanh_softcap


def causal_mask(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return q_idx >= kv_idx


def eager_flex_attention(query: Tensor, key: Tensor, value: Tensor, score_mods, mask_mod) -> Tensor:
    """Attention of queries, keys and values of shape (B, H, tokens, D), without a fused kernel"""
    B, H, Q, D = query.shape
    KV = key.shape[2]
    b = torch.arange(B, device=query.device).view(B, 1, 1, 1)
    h = torch.arange(H, device=query.device).view(1, H, 1, 1)
    q_idx = torch.arange(Q, device=query.device).view(1, 1, Q, 1)
    kv_idx = torch.arange(KV, device=query.device).view(1, 1, 1, KV)
    score = query @ key.transpose(-2, -1) / D**0.5
    for score_mod in score_mods:
        score = score_mod(score, b, h, q_idx, kv_idx)
    score = score.masked_fill(~mask_mod(b, h, q_idx, kv_idx), float("-inf"))
    return score.softmax(dim=-1) @ value


class AlibiAttention(nn.Module):
    def __init__(self, dim: int, num_heads: int, soft_cap: float | None = None):
        super().__init__()
        self.num_heads = num_heads
        self.score_mods = [] if soft_cap is None else [generate_tanh_softcap(soft_cap)]
        self.score_mods.append(generate_alibi_bias(num_heads))
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, tokens, dim). No token sees a later one, and near ones count more."""
        B, S, dim = x.shape
        qkv = self.qkv(x).view(B, S, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        out = eager_flex_attention(query, key, value, self.score_mods, causal_mask)
        return self.out(out.transpose(1, 2).reshape(B, S, dim))
