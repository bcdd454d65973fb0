"""Attention whose values and outputs come from a mixture of experts, with rotary positions and a cache."""

import torch
import torch.nn.functional as F
from torch import nn


class RotaryPosEncoding(nn.Module):
    """Rotates keys by their positions, and queries by theirs, which start at an offset."""

    def __init__(self, d_model: int, base: int = 10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, d_model, 2).float() / d_model))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def rotate_half(self, x: torch.Tensor) -> torch.Tensor:
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((-x2, x1), dim=-1)

    def apply_rot(self, x: torch.Tensor, offset: int) -> torch.Tensor:
        t = torch.arange(offset, offset + x.shape[-2], device=x.device).float()
        freqs = torch.outer(t, self.inv_freq.float())
        emb = torch.cat((freqs, freqs), dim=-1)
        return x * emb.cos().to(x.dtype) + self.rotate_half(x) * emb.sin().to(x.dtype)

    def forward(self, q: torch.Tensor, k: torch.Tensor, pos_offset: int):
        return self.apply_rot(q, pos_offset), self.apply_rot(k, 0)


class SwitchHead(nn.Module):
    """
    d_model: size of a token.
    n_heads: number of heads.
    n_experts: experts of each head, for values and for outputs.
    moe_k: how many of them are used.
    """

    def __init__(self, d_model: int, n_heads: int, n_experts: int = 3, moe_k: int = 2):
        super().__init__()
        self.n_heads, self.n_experts, self.moe_k = n_heads, n_experts, moe_k
        self.head_dim = d_model // n_heads
        self.q = nn.Linear(d_model, d_model, bias=False)
        self.k = nn.Linear(d_model, d_model, bias=False)
        std = d_model**-0.5
        self.v = nn.Parameter(torch.randn(n_heads, n_experts, d_model, self.head_dim) * std)
        self.o = nn.Parameter(torch.randn(n_heads, n_experts, self.head_dim, d_model) * std)
        self.sel_v = nn.Linear(d_model, n_heads * n_experts, bias=False)
        self.sel_o = nn.Linear(d_model, n_heads * n_experts, bias=False)
        self.pe = RotaryPosEncoding(self.head_dim)

    def gates(self, x: torch.Tensor, sel: nn.Linear) -> torch.Tensor:
        """Return how much each expert counts, zero unless chosen: (batch, length, heads, experts)."""
        scores = torch.sigmoid(sel(x)).unflatten(-1, (self.n_heads, self.n_experts))
        chosen = scores.topk(self.moe_k, dim=-1).indices
        return scores * torch.zeros_like(scores).scatter(-1, chosen, 1.0)

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def forward(self, x: torch.Tensor, kv_cache: dict | None = None):
        q, k = self.heads(self.q(x)), self.heads(self.k(x))
        v = torch.einsum("btm,bthe,hemd->bhtd", x, self.gates(x, self.sel_v), self.v)
        # before
        pos_offset = k.shape[-2] - q.shape[-2]
        # after
        # end
        if kv_cache:
            k = torch.cat([kv_cache["k"], k], dim=-2)
            v = torch.cat([kv_cache["v"], v], dim=-2)
        # keys are cached as they are before the rotation
        kv_cache = {"k": k, "v": v}
        # before
        # after
        pos_offset = k.shape[-2] - q.shape[-2]
        # end
        q, k = self.pe(q, k, pos_offset)
        t_q, t_k = q.shape[-2], k.shape[-2]
        causal = torch.ones(t_q, t_k, dtype=torch.bool, device=x.device).tril(t_k - t_q)
        res = F.scaled_dot_product_attention(q, k, v, attn_mask=causal)
        out = torch.einsum("bhtd,bthe,hedm->btm", res, self.gates(x, self.sel_o), self.o)
        return out, kv_cache
