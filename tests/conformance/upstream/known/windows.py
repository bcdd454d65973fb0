"""Known bugs of sliding windows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from upstream.cases import Case, sizes
from upstream.proofs import (
    CAUSAL,
    B,
    C,
    H,
    T,
    attended,
    heads,
    made,
    merged,
    proves,
    rotated,
    tokens,
)


def _clips() -> tuple[Any, ...]:
    """Return the frames of two clips, one after the other, and how many there are of each."""
    return torch.randn(17, 32), torch.tensor([10, 7])


def _angles(length: int, half: int) -> Tensor:
    """Return the angles by which the pairs of a head are rotated at each position."""
    return torch.outer(torch.arange(length), 10000.0 ** -(torch.arange(half) / half))


def _tokens_and_positions() -> tuple[Any, ...]:
    """Return 8 tokens, and the cosines and sines of their positions."""
    angles = _angles(8, 4)
    return torch.randn(2, 8, 32), (angles.cos(), angles.sin())


def _chats() -> tuple[Any, ...]:
    """Return two chats and where their images are."""
    return torch.randn(2, 10, 32), [[(1, 3)], [(4, 7)]]


CASES = (
    Case(
        "transformers_39408",
        "MistralAttention",
        "huggingface/transformers#39408",
        "window-off-by-one",
        options={"causal": True, "window": 4},
    ),
    Case(
        "mlx_lm_390",
        "Attention",
        "ml-explore/mlx-lm#390",
        "window-off-by-one",
        options={"causal": True, "window": 5},
    ),
    Case(
        "transformers_26792",
        "MistralAttention",
        "huggingface/transformers#26792",
        "window-off-by-one",
        options={"causal": True, "window": 4},
    ),
    Case(
        "unsloth_8253",
        "MistralAttention",
        "unslothai/unsloth#8253",
        "window-missing",
        options={"causal": True},
    ),
    Case(
        "hippogriff_7",
        "Attention",
        "proger/hippogriff#7",
        "window-missing",
        options={"causal": True, "window": 4, **sizes(dim=32, head_dim=8, window_size=3)},
    ),
    Case(
        "qwen3_asr_103",
        "AudioEncoder",
        "QwenLM/Qwen3-ASR#103",
        "window-missing",
        known_as=("mask-unused", "batch-mixed"),
        options=sizes(),
        example=_clips,
    ),
    Case(
        "maxtext_4289",
        "Attention",
        "AI-Hypercomputer/maxtext#4289",
        "window-off-by-one",
        options={
            "causal": True,
            "window": 4,
            **sizes(
                emb_dim=32, num_query_heads=4, num_kv_heads=2, head_dim=8, sliding_window_size=4
            ),
        },
    ),
    Case(
        "transformers_47162",
        "MoonshineStreamingEncoderLayer",
        "huggingface/transformers#47162",
        "window-off-by-one",
        options=sizes(hidden_size=32, num_attention_heads=4, sliding_window=(3, 2)),
    ),
    Case(
        "unilm_1612",
        "SlidingWindowAttention",
        "microsoft/unilm#1612",
        "window-off-by-one",
        options={
            "causal": True,
            "window": 4,
            **sizes(dim=32, n_self_heads=4, sliding_window=4),
        },
        example=_tokens_and_positions,
    ),
    Case(
        "ditfastattn_7",
        "FastAttention",
        "thu-nics/DiTFastAttn#7",
        "window-missing",
        options=sizes(dim=32, heads=4, window_size=2),
    ),
    Case(
        "jax_32300",
        "LocalSelfAttention",
        "jax-ml/jax#32300",
        "window-missing",
        known_as=("future-leak",),
        options={
            "causal": True,
            "window": 3,
            **sizes(features=32, num_heads=4, local_window_size=(2, 0)),
        },
    ),
    Case(
        "vllm_47332",
        "Gemma4Attention",
        "vllm-project/vllm#47332",
        "window-missing",
        known_as=("causal-alignment", "cache-mismatch"),
        options=sizes(hidden_size=32, num_heads=4, num_kv_heads=2, sliding_window=4),
        example=_chats,
    ),
    Case(
        "zml_763",
        "SelfAttn",
        "zml/zml#763",
        "window-off-by-one",
        options={
            "causal": True,
            "window": 4,
            **sizes(hidden_size=32, num_heads=4, num_kv_heads=2, sliding_window=4),
        },
    ),
)


def _windowed(m: Any, x: Tensor, window: int, kv_heads: int = H) -> Tensor:
    q, k, v = heads(m.q_proj(x)), heads(m.k_proj(x), kv_heads), heads(m.v_proj(x), kv_heads)
    keep = CAUSAL.triu(1 - window)
    return m.o_proj(merged(F.scaled_dot_product_attention(q, k, v, keep, enable_gqa=True)))


@proves("transformers_39408")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MistralAttention, C, H, 3), tokens()
    return m(x), _windowed(m, x, 3)


@proves("mlx_lm_390")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H, 3), tokens()
    return m(x)[0], _windowed(m, x, 3)


@proves("transformers_26792")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MistralAttention, C, H, 3), tokens()
    context = attended(m.q_proj(x), m.k_proj(x), m.v_proj(x), CAUSAL.triu(-2))
    return m(x)[0], m.o_proj(context)


@proves("unsloth_8253")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MistralAttention, C, H, 2, 3), tokens()
    return m(x), _windowed(m, x, 3, kv_heads=2)


@proves("hippogriff_7")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, 4, 2), tokens()
    q, k, v = m.qkv(x).chunk(3, -1)
    return m(x), m.output(attended(q, k, v, CAUSAL.triu(-2)))


@proves("qwen3_asr_103")
def _(module: Any) -> tuple[Tensor, Tensor]:
    config = module.AudioEncoderConfig(d_model=C, n_window=3)
    m, frames = made(module.AudioEncoder, config), tokens(9, C)
    alone = [m(window, torch.tensor([len(window)])) for window in frames.split([3, 2, 3, 1])]
    return m(frames, torch.tensor([5, 4])), torch.cat(alone)


@proves("maxtext_4289")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H, 2, 4, sliding_window_size=3), tokens()
    q, k, v = heads(m.query(x)), heads(m.key(x), 2), heads(m.value(x), 2)
    keep = CAUSAL.triu(-2)
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, enable_gqa=True)
    return m(x), m.out(merged(context))


@proves("transformers_47162")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MoonshineStreamingEncoderLayer, C, H, (3, 2)), tokens()
    a, y = m.self_attn, m.input_layernorm(x)
    seen = torch.ones(T, T, dtype=torch.bool).triu(-2).tril(2)
    return m(x), x + a.o_proj(attended(a.q_proj(y), a.k_proj(y), a.v_proj(y), seen))


@proves("unilm_1612")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SlidingWindowAttention, C, H, 3), tokens()
    cos, sin = (angles.double() for angles in (_angles(T, 2).cos(), _angles(T, 2).sin()))
    q, k = (rotated(heads(project(x)), interleaved=True) for project in (m.q_proj, m.k_proj))
    keep = CAUSAL.triu(-2)
    context = F.scaled_dot_product_attention(q, k, heads(m.v_proj(x)), attn_mask=keep)
    state: dict[str, Tensor] = {}
    parts = [(x[:, t : t + 2], (cos[t : t + 2], sin[t : t + 2]), state) for t in (0, 2, 4)]
    actual = torch.stack([m(x, (cos, sin)), torch.cat([m(*part) for part in parts], 1)])
    return actual, m.out_proj(merged(context)).expand_as(actual)


@proves("ditfastattn_7")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.FastAttention, C, H, 2), tokens()
    near = torch.ones(T, T, dtype=torch.bool).triu(-2).tril(2)
    return m(x), m.to_out(attended(m.to_q(x), m.to_k(x), m.to_v(x), near))


@proves("jax_32300")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.LocalSelfAttention, C, H, (2, 1)), tokens()
    near = torch.ones(T, T, dtype=torch.bool).triu(-2).tril(1)
    expected = m.out(attended(m.query(x), m.key(x), m.value(x), near))
    masked = m(x, torch.ones(1, 1, 1, T, dtype=torch.bool))
    return torch.stack([m(x), masked]), expected.expand(2, B, T, C)


@proves("vllm_47332")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Gemma4Attention, C, H, 2, sliding_window=2), tokens()
    images = [[(0, 3)], [(1, 2), (4, 5)], []]
    keep = CAUSAL.triu(-1).repeat(B, 1, 1)
    for request, ranges in enumerate(images):
        for start, end in ranges:
            keep[request, start : end + 1, start : end + 1] = True
    q, k, v = m.qkv_proj(x).split([C, C // 2, C // 2], -1)
    context = F.scaled_dot_product_attention(
        heads(q), heads(k, 2), heads(v, 2), keep[:, None], enable_gqa=True
    )
    cache: dict[str, Tensor] = {}
    parts = [m(part, images, cache) for part in (x[:, :4], x[:, 4:])]
    actual = torch.stack([m(x, images), torch.cat(parts, 1)])
    return actual, m.o_proj(merged(context)).expand_as(actual)


@proves("zml_763")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SelfAttn, C, H, 2, 3), tokens()
    q, k, v = heads(m.q_proj(x)), heads(m.k_proj(x), 2), heads(m.v_proj(x), 2)
    keep = CAUSAL.triu(-2)
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, enable_gqa=True)
    return m(x)[0], m.o_proj(merged(context))
