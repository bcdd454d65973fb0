"""Held-out bugs of public projects whose owners' names start with A to L, with proofs: the first set.

They were re-created without running the check or reading it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from upstream.cases import Case, edges, sizes
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


def _histories() -> tuple[Any, ...]:
    """Return two histories of up to 6 items, and the numbers of items."""
    items = torch.randint(1, 20, (2, 6))
    items[1, 4:] = 0
    return items, torch.tensor([6, 4])


def _pixels_and_prompts() -> tuple[Any, ...]:
    """Return two images of 9 pixels, and the 5 tokens of their texts with the 4 tokens of their images."""
    return torch.randn(2, 9, 32), torch.randn(2, 9, 24)


def _frames_and_prompts() -> tuple[Any, ...]:
    """Return two videos of 3 frames, the 5 tokens of each frame's prompt, and that no frame stands for itself."""
    return torch.randn(6, 32, 2, 2), torch.randn(6, 5, 24), torch.zeros(2, 3, dtype=torch.bool)


def _graph() -> tuple[Any, ...]:
    """Return the features of 5 nodes, and which nodes are neighbors; each is one of itself."""
    x, (source, target) = edges()
    adjacent = torch.eye(5)
    adjacent[source, target] = adjacent[target, source] = 1
    return x, adjacent


def _videos() -> tuple[Any, ...]:
    """Return two videos of 4 frames of 5 pixels, and that the first is one of separate images."""
    return torch.randn(2, 5, 4, 32), None, torch.tensor([True, False])


def _sentences() -> tuple[Any, ...]:
    """Return two sentences of up to 6 words, and where there are words."""
    return torch.randn(2, 6, 32), torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])


def _traffic() -> tuple[Any, ...]:
    """Return 3 features of 5 nodes at 4 times, and the sources and targets of 8 edges."""
    return torch.randn(5, 3, 4), edges()[1]


ONE = (
    Case(
        "light_sans_3",
        "LightSANs",
        "BELIEVEfxy/LightSANs#3",
        "padding-leak",
        known_as=("mask-unused",),
        options=sizes(n_items=20, hidden_size=32, n_heads=4, max_seq_length=8),
        example=_histories,
    ),
    Case(
        "video_crafter_38",
        "CrossAttention",
        "AILab-CVC/VideoCrafter#38",
        "crashes",
        known_as=("heads-mixed-merge",),
        options=sizes(
            query_dim=32,
            context_dim=24,
            heads=4,
            dim_head=8,
            img_cross_attention=True,
            text_context_length=5,
        ),
        example=_pixels_and_prompts,
    ),
    Case(
        "diffusers_7268",
        "TransformerSpatioTemporalModel",
        "huggingface/diffusers#7268",
        "batch-mixed",
        options=sizes(
            num_attention_heads=4, attention_head_dim=8, in_channels=32, cross_attention_dim=24
        ),
        example=_frames_and_prompts,
    ),
    Case(
        "transformers_47946",
        "GPT2Model",
        "huggingface/transformers#47946",
        "mask-unused",
        known_as=("padding-leak",),
        options={"causal": True, **sizes(hidden_size=32, num_attention_heads=4)},
    ),
    Case(
        "pygat_16",
        "SpGraphAttentionLayer",
        "diegoantognini/pyGAT#16",
        "weights-wrong",
        options=sizes(in_features=16, out_features=8),
        example=_graph,
    ),
    Case(
        "video_diffusion_6",
        "Attention",
        "lucidrains/video-diffusion-pytorch#6",
        "mask-inverted",
        options=sizes(dim=32, heads=4, dim_head=8),
        example=_videos,
    ),
    Case(
        "flash_linear_attention_875",
        "LinearAttention",
        "fla-org/flash-linear-attention#875",
        "gradient-wrong",
        options={"causal": True, **sizes(hidden_size=32, num_heads=4)},
    ),
    Case(
        "infini_transformer_15",
        "InfiniAttention",
        "Beomi/InfiniTransformer#15",
        "context-wrong",
        known_as=("weights-wrong", "rotary-mismatch", "rotary-offset"),
        options={"causal": True, **sizes(hidden_size=32, num_heads=4)},
    ),
    Case(
        "fastnlp_140",
        "StarTransformer",
        "FudanNLP/fastNLP#140",
        "projection-unused",
        known_as=("keys-values-swapped", "context-wrong"),
        options=sizes(hidden_size=32, num_layers=2, num_head=4, head_dim=8),
        example=_sentences,
    ),
    Case(
        "transformers_47162",
        "MoonshineStreamingEncoderLayer",
        "huggingface/transformers#47162",
        "window-off-by-one",
        options=sizes(hidden_size=32, num_attention_heads=4, sliding_window=(3, 2)),
    ),
    Case(
        "fast_transformers_37",
        "LocalAttentionLayer",
        "idiap/fast-transformers#37",
        "nan-on-masked-rows",
        known_as=("output-not-finite",),
        options=sizes(d_model=32, n_heads=4, local_context=3),
    ),
    Case(
        "pytorch_geometric_temporal_204",
        "A3TGCN",
        "benedekrozemberczki/pytorch_geometric_temporal#204",
        "attention-ignored",
        known_as=("weights-wrong",),
        options=sizes(in_channels=3, out_channels=8, periods=4),
        example=_traffic,
    ),
)


@proves("light_sans_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, items, counts = made(module.LightSANs, 9, C, H), torch.randint(1, 9, (B, T)), REAL.sum(1)
    alone = [m(items[[i], : counts[i]], counts[[i]]) for i in range(B)]
    return m(items * REAL, counts), torch.cat(alone)


@proves("video_crafter_38")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.CrossAttention, C, 5, H, 4, 0.0, True, 7, 0.5)
    x, text, image = tokens(), tokens(B, 7, 5), tokens(B, 4, 5)
    q = m.to_q(x)
    by_text = attended(q, m.to_k(text), m.to_v(text))
    by_image = attended(q, m.to_k_ip(image), m.to_v_ip(image))
    return m(x, torch.cat([text, image], 1)), m.to_out(by_text + by_image / 2)


@proves("diffusers_7268")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.TransformerSpatioTemporalModel, H, 4, C, 5)
    frames, prompts = tokens(B, 2, C, 3, 2), tokens(B, 2, 7, 5)
    single = torch.zeros(B, 2, dtype=torch.bool)
    alone = [m(*video) for video in zip(frames, prompts, single.split(1), strict=True)]
    return m(frames.flatten(0, 1), prompts.flatten(0, 1), single), torch.cat(alone)


@proves("transformers_47946")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, states = made(module.GPT2Model, C, H), tokens(B, 4, C), tokens()
    alone = [m(x[[i]], states[[i]][:, REAL[i]]) for i in range(B)]
    return m(x, states, None, REAL.long()), torch.cat(alone)


@proves("pygat_16")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SpGraphAttentionLayer, C, 5), tokens(T, C)
    adjacent = (torch.rand(T, T) < 0.5) | torch.eye(T, dtype=torch.bool)
    h = x @ m.W
    scores = F.leaky_relu(h @ m.a[0, :5, None] + h @ m.a[0, 5:], 0.2)
    weights = scores.masked_fill(~adjacent, float("-inf")).softmax(-1)
    return m(x, adjacent), F.elu(weights @ h)


@proves("video_diffusion_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, videos, bias = made(module.Attention, C, H, 5), tokens(B, 4, T, C), tokens(H, T, T)
    separate = torch.tensor([True, False, True])
    q, k, v = (x.unflatten(-1, (H, 5)).transpose(2, 3) for x in m.to_qkv(videos).chunk(3, -1))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    mixed = torch.where(separate[:, None, None, None, None], v, mixed)
    return m(videos, bias, separate), m.to_out(mixed.transpose(2, 3).flatten(3))


@proves("flash_linear_attention_875")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, direction = made(module.LinearAttention, C, H), tokens().requires_grad_(), tokens()
    q, k, v = (heads(project(x)) for project in (m.q_proj, m.k_proj, m.v_proj))
    weights = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT).tril()
    expected = m.o_proj(merged(weights / weights.sum(-1, keepdim=True) @ v))
    gradients = [torch.autograd.grad((y * direction).sum(), x)[0] for y in (m(x), expected)]
    return gradients[0], gradients[1]


@proves("infini_transformer_15")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.InfiniAttention, C, H, 4), tokens()
    m.gate.data.copy_(tokens(1, H, 1, 1))
    q, k, v = (heads(project(x)) for project in (m.q_proj, m.k_proj, m.v_proj))
    segment = torch.arange(T) // 4
    near = CAUSAL & (segment[:, None] == segment)
    local = F.scaled_dot_product_attention(rotated(q), rotated(k), v, attn_mask=near)
    weights = (F.elu(q) + 1) @ (F.elu(k) + 1).mT * (segment[:, None] > segment)
    distant = weights @ v / (weights.sum(-1, keepdim=True) + 1e-6)
    gate = m.gate.sigmoid()
    return m(x), m.o_proj(merged(gate * distant + (1 - gate) * local))


@proves("fastnlp_140")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.StarTransformer, C, 1, H, 4), tokens()
    nodes, relay = m(x, REAL.long())
    words = x * REAL[..., None]
    mean = words.sum(1, keepdim=True) / REAL.sum(1)[:, None, None]
    star, keys = m.star_att[0], torch.cat([mean, nodes], 1)
    seen = torch.cat([REAL[:, :1], REAL], 1)
    context = attended(star.WQ(mean), star.WK(keys), star.WV(keys), seen)
    return relay, F.leaky_relu(star.WO(context))[:, 0]


@proves("transformers_47162")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MoonshineStreamingEncoderLayer, C, H, (3, 2)), tokens()
    a, y = m.self_attn, m.input_layernorm(x)
    seen = torch.ones(T, T, dtype=torch.bool).triu(-2).tril(2)
    return m(x), x + a.o_proj(attended(a.q_proj(y), a.k_proj(y), a.v_proj(y), seen))


@proves("fast_transformers_37")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.LocalAttentionLayer, C, H, 3), tokens()
    actual, expected = m(x, REAL), torch.zeros_like(x)
    near = torch.ones(T, T, dtype=torch.bool).triu(-1).tril(1)
    q, k, v = (f(x) for f in (m.query_projection, m.key_projection, m.value_projection))
    for i, count in enumerate(REAL.sum(1)):
        parts = (heads(part[[i], :count]) for part in (q, k, v))
        context = F.scaled_dot_product_attention(*parts, attn_mask=near[:count, :count])
        expected[i, :count] = m.out_projection(merged(context))[0]
    # what there is at padding is free, but it must be a number
    return actual, torch.where(REAL[..., None], expected, actual.nan_to_num())


@proves("pytorch_geometric_temporal_204")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, states = made(module.PeriodAttention, C, 4), tokens(4, T, C)
    return m(states.flip(0)), m(states).flip(0)
