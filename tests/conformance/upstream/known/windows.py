"""Known bugs of sliding windows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from upstream.cases import Case, sizes
from upstream.proofs import (
    CAUSAL,
    C,
    H,
    attended,
    heads,
    made,
    merged,
    proves,
    tokens,
)


def _clips() -> tuple[Any, ...]:
    """Return the frames of two clips, one after the other, and how many there are of each."""
    return torch.randn(17, 32), torch.tensor([10, 7])


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
