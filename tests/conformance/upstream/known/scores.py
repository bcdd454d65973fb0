"""Known bugs of scores on their way from queries and keys to weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from upstream.cases import Case, image, sizes
from upstream.proofs import (
    CAUSAL,
    REAL,
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


def _windows() -> tuple[Any, ...]:
    """Return the tokens of two windows of 2 × 2 × 2, from the skip connection and from below."""
    return torch.randn(2, 8, 16), torch.randn(2, 8, 16)


CASES = (
    Case(
        "nnformer_88",
        "WindowAttention_kv",
        "282857341/nnFormer#88",
        "weights-wrong",
        known_as=("relative-shift-wrong", "projection-unused"),
        options=sizes(dim=16, window_size=(2, 2, 2), num_heads=4),
        example=_windows,
    ),
    Case(
        "attention_gym_86",
        "AlibiAttention",
        "meta-pytorch/attention-gym#86",
        "weights-wrong",
        known_as=("relative-shift-wrong",),
        options={"causal": True, **sizes(dim=32, num_heads=4)},
    ),
    Case(
        "swin_transformer_v2_1",
        "WindowMultiHeadAttention",
        "ChristophReich1996/Swin-Transformer-V2#1",
        "weights-wrong",
        known_as=("scale-wrong",),
        options=sizes(in_features=16, window_size=4, number_of_heads=4),
        example=image,
    ),
    Case(
        "hunyuandit_247",
        "CrossAttention",
        "Tencent-Hunyuan/HunyuanDiT#247",
        "weights-wrong",
        known_as=("gradient-wrong", "rotary-precision"),
        options=sizes(qdim=32, kdim=24, num_heads=4),
    ),
    Case(
        "mlx_3071",
        "AlibiAttention",
        "ml-explore/mlx#3071",
        "weights-wrong",
        options={"causal": True, **sizes(dims=48, num_heads=6)},
    ),
)


@proves("nnformer_88")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, skip, up = made(module.WindowAttention_kv, C, (2, 2, 2), H), tokens(B, 8, C), tokens(B, 8, C)
    with torch.no_grad():
        m.relative_position_bias_table += tokens(27, H)  # as after some steps of training
    places = torch.cartesian_prod(*[torch.arange(2)] * 3)
    s, h, w = (places[:, None] - places + 1).unbind(-1)
    bias = m.relative_position_bias_table.view(3, 3, 3, H)[s, h, w].permute(2, 0, 1)
    k, v = m.kv(up).chunk(2, -1)
    return m(skip, up), m.proj(attended(skip, k, v, bias))


@proves("attention_gym_86")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AlibiAttention, C, H), tokens()
    distances = torch.arange(T)[:, None] - torch.arange(T)
    slopes = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256]).double()[:, None, None]
    bias = (-slopes * distances).masked_fill(~CAUSAL, -torch.inf)
    q, k, v = m.qkv(x).chunk(3, -1)
    return m(x), m.out(attended(q, k, v, bias))


@proves("swin_transformer_v2_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, window = made(module.WindowMultiHeadAttention, C, 2, H), tokens(B, C, 2, 2)
    q, k, v = (heads(part) for part in m.mapping_qkv(window.flatten(2).mT).chunk(3, -1))
    bias = m.meta_network(m.relative_coordinates_log).permute(2, 0, 1)
    cosines = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
    out = m.projection(merged((cosines / m.tau + bias).softmax(-1) @ v))
    return m(window), out.mT.reshape(B, C, 2, 2)


@proves("hunyuandit_247")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, prompt = made(module.CrossAttention, C, 12, H), tokens(), tokens(B, T, 12)
    k, v = m.kv_proj(prompt).unflatten(-1, (2, H, 4)).permute(2, 0, 3, 1, 4)
    q = rotated(m.q_norm(heads(m.q_proj(x))), interleaved=True)
    context = F.scaled_dot_product_attention(q, m.k_norm(k), v, attn_mask=REAL[:, None, None])
    return m(x, prompt, REAL), m.out_proj(merged(context))


@proves("mlx_3071")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AlibiAttention, 24, 6), tokens(B, T, 24)
    slopes = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]).double()
    distances = torch.arange(T) - torch.arange(T)[:, None]
    bias = (slopes[:, None, None] * distances).masked_fill(~CAUSAL, float("-inf"))
    q, k, v = (heads(project(x), 6) for project in (m.query_proj, m.key_proj, m.value_proj))
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return m(x), m.out_proj(merged(context))
