"""Correct attentions that are written in ways that a checker may take for bugs.

The docstring of each class is its name in the corpus.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

C, H, D, MAX_LENGTH = 24, 4, 6, 80


class Packed(nn.Module):
    """one packed projection, on the fused kernel"""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(C, 3 * H * D)
        self.out = nn.Linear(H * D, C)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, H, D).permute(2, 0, 3, 1, 4)
        return self.out(self.attend(q, k, v).transpose(1, 2).reshape(B, T, H * D))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class ReversedRotary(Packed):
    """rotary positions by halves, rotated in the opposite direction"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        positions = torch.arange(q.shape[2], dtype=torch.float32)
        angles = torch.outer(positions, 10_000.0 ** (-torch.arange(0, D, 2) / D))
        cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)

        def rotated(x: Tensor) -> Tensor:
            first, second = x.chunk(2, dim=-1)
            return torch.cat([first * cos + second * sin, second * cos - first * sin], dim=-1)

        q, k = F.rms_norm(rotated(q), (D,)), F.rms_norm(rotated(k), (D,))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class ComplexRotary(Packed):
    """rotary positions as complex numbers"""

    def __init__(self) -> None:
        super().__init__()
        frequencies = 1.0 / 10_000.0 ** (torch.arange(0, D, 2).float() / D)
        angles = torch.outer(torch.arange(MAX_LENGTH).float(), frequencies)
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        turns = self.freqs_cis[: q.shape[2]]

        def rotated(x: Tensor) -> Tensor:
            pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
            return torch.view_as_real(pairs * turns).flatten(3).to(x.dtype)

        return F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)


class PartialRotary(Packed):
    """rotary positions in some of the features only"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        positions = torch.arange(q.shape[2])
        angles = torch.outer(positions.double(), 100.0 ** -torch.arange(2).double())
        cos, sin = (it.repeat(1, 2).to(q.dtype) for it in (angles.cos(), angles.sin()))

        def rotated(x: Tensor) -> Tensor:
            moving, still = x[..., :4], x[..., 4:]
            half = torch.cat([-moving[..., 2:], moving[..., :2]], dim=-1)
            return torch.cat([moving * cos + half * sin, still], dim=-1)

        scores = rotated(q) @ rotated(k).mT / math.sqrt(D)
        return scores.masked_fill(positions[:, None] < positions, -1e9).softmax(-1) @ v


class BlockwiseKeys(Packed):
    """blocks of keys with a running maximum and sum"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        T = q.shape[2]
        q = q / D**0.5
        out = torch.zeros_like(q)
        total = q.new_zeros(*q.shape[:3], 1)
        largest = torch.full_like(total, -math.inf)
        for start in range(0, T, 4):
            keys = torch.arange(start, min(start + 4, T))
            s = q @ k[:, :, start : start + 4].mT
            s = s.masked_fill(torch.arange(T)[:, None] < keys, -math.inf)
            larger = torch.maximum(largest, s.amax(-1, keepdim=True))
            p, kept = torch.exp(s - larger), torch.exp(largest - larger)
            out, total = (
                out * kept + p @ v[:, :, start : start + 4],
                total * kept + p.sum(-1, keepdim=True),
            )
            largest = larger
        return out / total


class SinkLogits(Packed):
    """a learned sink logit, which takes weight and adds no value"""

    def __init__(self) -> None:
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(H))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        B, _, T, _ = q.shape
        scores = q @ k.mT / D**0.5
        scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf)
        sinks = self.sinks.view(1, H, 1, 1).expand(B, H, T, 1)
        return torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1] @ v


class RelativeBias(Packed):
    """a learned bias for each bucket of distances, and no scale"""

    def __init__(self) -> None:
        super().__init__()
        self.relative_attention_bias = nn.Embedding(8, H)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        position = torch.arange(q.shape[2])
        bucket = (position[:, None] - position).clamp(-4, 3) + 4
        bias = self.relative_attention_bias(bucket).permute(2, 0, 1)[None]
        return (q @ k.mT + bias).softmax(-1) @ v


class GatedHeads(Packed):
    """a gate on each head's context, and a learned scale for each head"""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(C, H)
        self.temperature = nn.Parameter(torch.full((H, 1, 1), D**-0.5))

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, H, D).permute(2, 0, 3, 1, 4)
        y = (q @ k.mT * self.temperature).softmax(-1) @ v
        y = y * self.gate(x).sigmoid().transpose(1, 2)[..., None]
        return self.out(y.transpose(1, 2).flatten(2))


class Float32Softmax(Packed):
    """the softmax in float32, whatever the dtype of the inputs"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        T = q.shape[2]
        mask = torch.full((T, T), torch.finfo(torch.float32).min).triu(1)
        scores = (q @ k.mT).float() * D**-0.5 + mask
        return F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ v


class FusedOrManual(Packed):
    """the fused kernel if it exists, or else a mask in a buffer"""

    def __init__(self) -> None:
        super().__init__()
        self.flash = hasattr(F, "scaled_dot_product_attention")
        self.dropout = 0.1
        self.attn_dropout = nn.Dropout(self.dropout)
        self.register_buffer("bias", torch.ones(MAX_LENGTH, MAX_LENGTH).tril())

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        T = q.shape[2]
        if self.flash:
            p = self.dropout if self.training else 0
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=None, dropout_p=p, is_causal=True
            )
        scores = (q @ k.mT / D**0.5).masked_fill(self.bias[:T, :T] == 0, -math.inf)
        return self.attn_dropout(scores.softmax(-1)) @ v


class MultiQuery(nn.Module):
    """one head of keys and values for all query heads"""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_kv = nn.Linear(C, H * D), nn.Linear(C, 2 * D)
        self.to_out = nn.Linear(H * D, C)

    def forward(self, x: Tensor) -> Tensor:
        q = self.to_q(x).unflatten(-1, (H, D))
        k, v = self.to_kv(x).chunk(2, dim=-1)
        sim = torch.einsum("bihd,bjd->bhij", q, k) * D**-0.5
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        attn = sim.masked_fill(causal, -torch.finfo(sim.dtype).max).softmax(dim=-1)
        return self.to_out(torch.einsum("bhij,bjd->bihd", attn, v).flatten(2))


class FusedGroups(nn.Module):
    """grouped heads that the fused kernel repeats"""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.o_proj = nn.Linear(C, C, bias=False), nn.Linear(C, C, bias=False)
        self.k_proj, self.v_proj = nn.Linear(C, 2 * D, bias=False), nn.Linear(C, 2 * D, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            it(x).unflatten(-1, (-1, D)).transpose(1, 2)
            for it in (self.q_proj, self.k_proj, self.v_proj)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class HeadsInBatch(Packed):
    """product and scale in one baddbmm, heads folded into the batch"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        B, _, T, _ = q.shape
        q, k, v = (it.reshape(B * H, T, D) for it in (q, k, v))
        room = torch.empty(B * H, T, T, dtype=q.dtype)
        scores = torch.baddbmm(room, q, k.transpose(1, 2), beta=0, alpha=D**-0.5)
        return torch.bmm(scores.softmax(dim=-1), v).view(B, H, T, D)


class SymmetricWindow(Packed):
    """a window in both directions"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        position = torch.arange(q.shape[2])
        near = (position[:, None] - position).abs() <= 2
        return F.scaled_dot_product_attention(q, k, v, attn_mask=near)


class ZeroRows(nn.Module):
    """zeros for queries that see no key, with a causal mask and padding"""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(C, 3 * C), nn.Linear(C, C)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        B, T, _ = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, H, D).permute(2, 0, 3, 1, 4)
        hidden = torch.ones(T, T, dtype=torch.bool).triu(1)[None, None]
        if key_padding_mask is not None:
            hidden = hidden | key_padding_mask[:, None, None, :]
        scores = (q @ k.mT / D**0.5).masked_fill(hidden, float("-inf"))
        weights = torch.nan_to_num(scores.softmax(dim=-1), 0.0)
        return self.proj((weights @ v).transpose(1, 2).reshape(B, T, C))


class SequenceLengths(nn.Module):
    """the lengths of the sequences as an argument"""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(C, H, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        if lengths is None:
            return self.attention(x, x, x, need_weights=False)[0]
        padding = torch.arange(x.shape[1]) >= lengths[:, None]
        return self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]


class WithWeights(Packed):
    """the weights returned with the output"""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        B, T, _ = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, H, D).permute(2, 0, 3, 1, 4)
        weights = torch.matmul(q, k.transpose(-1, -2)).div(math.sqrt(D)).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(B, T, C)), weights


class LargerValues(Packed):
    """values of another size than queries and keys"""

    def __init__(self) -> None:
        super().__init__()
        self.qk, self.v = nn.Linear(C, 2 * H * 5), nn.Linear(C, H * 7)
        self.out = nn.Linear(H * 7, C)
        del self.qkv

    def forward(self, x: Tensor) -> Tensor:
        q, k = (it.unflatten(-1, (H, 5)).transpose(1, 2) for it in self.qk(x).chunk(2, dim=-1))
        v = self.v(x).unflatten(-1, (H, 7)).transpose(1, 2)
        scores = q.matmul(k.transpose(-2, -1)) / 5**0.5
        T = x.shape[1]
        scores = scores + torch.triu(torch.full((T, T), -1e10), diagonal=1)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Checkpointed(Packed):
    """activation checkpointing"""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        from torch.utils.checkpoint import checkpoint

        def inner(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return (q @ k.mT / D**0.5).softmax(-1) @ v

        return checkpoint(inner, q, k, v, use_reentrant=False)


class CrossAttention(nn.Module):
    """queries from one sequence, keys and values from another one"""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(C, C), nn.Linear(C, 2 * C), nn.Linear(C, C)

    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor | None = None) -> Tensor:
        q = self.q(x).unflatten(-1, (H, D)).transpose(1, 2)
        k, v = (it.unflatten(-1, (H, D)).transpose(1, 2) for it in self.kv(memory).chunk(2, -1))
        mask = None if memory_mask is None else memory_mask[:, None, None, :].bool()
        return self.o(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))


class LanguageModel(nn.Module):
    """a small language model, from token ids to logits"""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(37, C), nn.Embedding(MAX_LENGTH, C)
        self.norms = nn.ModuleList(nn.LayerNorm(C) for _ in range(4))
        self.attentions = nn.ModuleList(FusedOrManual() for _ in range(2))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(C, 2 * C), nn.GELU(), nn.Linear(2 * C, C)) for _ in range(2)
        )
        self.lm_head = nn.Linear(C, 37, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for n in range(2):
            x = x + self.attentions[n](self.norms[2 * n](x))
            x = x + self.mlps[n](self.norms[2 * n + 1](x))
        return self.lm_head(x)


class PaddedEncoder(nn.Module):
    """an embedding with a padding token, and an encoder layer"""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(37, C, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(C, H, 32, batch_first=True)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.layer(self.embedding(input_ids))


class StaticCache(nn.Module):
    """a cache of fixed size in the module, with its unused slots masked"""

    def __init__(self) -> None:
        super().__init__()
        self.wqkv, self.wo = nn.Linear(C, 3 * C, bias=False), nn.Linear(C, C, bias=False)
        self.register_buffer("k_cache", torch.zeros(4, H, 32, D), persistent=False)
        self.register_buffer("v_cache", torch.zeros(4, H, 32, D), persistent=False)
        self.register_buffer("causal_mask", torch.ones(32, 32).tril().bool(), persistent=False)

    def forward(self, x: Tensor, start_pos: int = 0) -> Tensor:
        B, T, _ = x.shape
        q, k, v = self.wqkv(x).view(B, T, 3, H, D).permute(2, 0, 3, 1, 4)
        with torch.no_grad():
            self.k_cache[:B, :, start_pos : start_pos + T] = k
            self.v_cache[:B, :, start_pos : start_pos + T] = v
        keys = self.k_cache[:B].index_copy(2, torch.arange(start_pos, start_pos + T), k)
        values = self.v_cache[:B].index_copy(2, torch.arange(start_pos, start_pos + T), v)
        mask = self.causal_mask[start_pos : start_pos + T]
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        return self.wo(y.transpose(1, 2).reshape(B, T, C))


class HeadwiseNorm(Packed):
    """queries and keys normalised by layer norms"""

    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.k_norm = nn.LayerNorm(D), nn.LayerNorm(D)
        self.proj_drop = nn.Dropout(0.1)
        self.scale = D**-0.5

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = self.q_norm(q), self.k_norm(k)
        q = q * self.scale
        return self.proj_drop((q @ k.transpose(-2, -1)).softmax(dim=-1)) @ v
