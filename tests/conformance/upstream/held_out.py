"""The held-out bugs of public projects, with proofs: they were re-created without running the check or reading it.

They guide no change of it. Once a bug guides a change, it is moved to the known ones.
"""

from __future__ import annotations

import math
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
    in_steps,
    made,
    merged,
    proves,
    tokens,
)


def _video_and_query() -> tuple[Any, ...]:
    """Return two videos of 7 frames, two queries of up to 5 words, and where there are words."""
    words = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    return torch.randn(2, 7, 32), torch.randn(2, 5, 32), words


def _series() -> tuple[Any, ...]:
    """Return two series of 8 steps that attend to series of 12 steps."""
    past = torch.randn(2, 12, 32)
    return torch.randn(2, 8, 32), past, past


def _nodes_of_graphs() -> tuple[Any, ...]:
    """Return the 7 nodes of two graphs, and the number of the graph of each node."""
    return torch.randn(7, 16), torch.tensor([0, 0, 0, 1, 1, 1, 1])


HELD_OUT: tuple[Case, ...] = (
    Case(
        "lighthouse_77",
        "T2V_TransformerEncoder",
        "line/lighthouse#77",
        "mask-broadcast",
        known_as=("batch-mixed", "padding-leak", "nan-on-masked-rows", "mask-unused"),
        options=sizes(d_model=32, nhead=4),
        example=_video_and_query,
    ),
    Case(
        "long_short_transformer_2",
        "LongShortAttention",
        "lucidrains/long-short-transformer#2",
        "crashes",
        known_as=("mask-broadcast",),
        options=sizes(dim=32, heads=4, dim_head=8, window_size=4, r=2),
    ),
    Case(
        "time_series_library_209",
        "AutoCorrelationLayer",
        "thuml/Time-Series-Library#209",
        "crashes",
        options=sizes(d_model=32, n_heads=4, seq_len_q=8, seq_len_kv=12, modes=3),
        example=_series,
    ),
    Case(
        "spektral_302",
        "Readout",
        "danielegrattarola/spektral#302",
        "batch-mixed",
        known_as=("rows-not-normalised", "softmax-wrong-dim"),
        options=sizes(in_channels=16, channels=8, n_classes=3),
        example=_nodes_of_graphs,
    ),
    Case(
        "annotated_transformer_1",
        "MultiHeadedAttention",
        "yflyzhang/AnnotatedTransformer#1",
        "projection-unused",
        known_as=("keys-values-swapped", "context-wrong"),
        options=sizes(h=4, d_model=32),
    ),
    Case(
        "wenet_2699",
        "MultiHeadedAttention",
        "wenet-e2e/wenet#2699",
        "dropout-in-eval",
        options=sizes(n_head=4, n_feat=32, dropout_rate=0.1),
    ),
    Case(
        "leo_optimizer_2",
        "MultiHeadAttention",
        "vukrosic/leo-optimizer#2",
        "rotary-mismatch",
        options={"causal": True, **sizes(d_model=32, n_heads=4, max_seq_len=16)},
    ),
    Case(
        "self_attention_gan_tensorflow_3",
        "SelfAttention",
        "taki0112/Self-Attention-GAN-Tensorflow#3",
        "softmax-wrong-dim",
        known_as=("rows-not-normalised", "context-wrong", "weights-wrong"),
        options=sizes(ch=16),
        example=image,
    ),
    Case(
        "diffusers_3207",
        "AttentionBlock",
        "huggingface/diffusers#3207",
        "crashes",
        known_as=("heads-mixed-merge", "batch-mixed"),
        options=sizes(channels=16, num_head_channels=4, norm_num_groups=4),
        example=image,
    ),
    Case(
        "espnet_2816",
        "RelPositionMultiHeadedAttention",
        "espnet/espnet#2816",
        "relative-shift-wrong",
        known_as=("weights-wrong",),
        options=sizes(n_head=4, n_feat=32),
    ),
    Case(
        "hyprstream_1521",
        "LlamaAttention",
        "hyprstream/hyprstream#1521",
        "causal-alignment",
        known_as=("cache-mismatch",),
        options={"causal": True, **sizes(hidden_size=32, num_heads=4, num_kv_heads=2)},
    ),
    Case(
        "aprender_2143",
        "AlibiSelfAttention",
        "paiml/aprender#2143",
        "weights-wrong",
        known_as=("relative-shift-wrong",),
        options={"causal": True, **sizes(d_model=32, n_heads=4)},
    ),
)


@proves("lighthouse_77")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, video, text = made(module.T2V_TransformerEncoder, C, H), tokens(B, 5, C), tokens()
    counts = REAL.sum(1)
    alone = [m(video[[i]], text[[i], : counts[i]]) for i in range(B)]
    return m(video, text, REAL.long()), torch.cat(alone)


@proves("long_short_transformer_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.LongShortAttention, dim=C, heads=H, dim_head=4, window_size=2, r=2)
    x, counts = tokens(), REAL.sum(1)
    alone = [m(x[[i], : counts[i]])[0] for i in range(B)]
    return m(x, mask=REAL)[REAL], torch.cat(alone)


@proves("time_series_library_209")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, past = made(module.AutoCorrelationLayer, C, H, T, 8, 3), tokens(), tokens(B, 8, C)
    inner = m.inner_correlation
    q = torch.fft.rfft(m.query_projection(x), dim=1)[:, :3].unflatten(-1, (H, -1))
    k = torch.fft.rfft(m.key_projection(past), dim=1)[:, :3].unflatten(-1, (H, -1))
    scores = torch.einsum("bxhe,byhe->bhxy", q, k)
    scores = torch.complex(scores.real.tanh(), scores.imag.tanh())
    weights = torch.complex(inner.weights1, inner.weights2) / C**2
    out = torch.einsum("bhxy,byhe,heox->bxho", scores, k, weights).flatten(2)
    return m(x, past, past), m.out_projection(torch.fft.irfft(F.pad(out, (0, 0, 0, 1)), n=T, dim=1))


@proves("spektral_302")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, graphs = made(module.Readout, C, 8, 3), [tokens(3, C), tokens(4, C), tokens(2, C)]
    numbers = torch.arange(3).repeat_interleave(torch.tensor([3, 4, 2]))
    return m(torch.cat(graphs), numbers), torch.cat([m(graph) for graph in graphs])


@proves("annotated_transformer_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, text = made(module.MultiHeadedAttention, H, C), tokens(B, 5, C), tokens()
    context = attended(m.q_proj(x), m.k_proj(text), m.v_proj(text), REAL)
    return m(x, text, text, REAL[:, None]), m.o_proj(context)


@proves("wenet_2699")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadedAttention, H, C, 0.5), tokens()
    context = attended(m.linear_q(x), m.linear_k(x), m.linear_v(x), REAL)
    return m(x, x, x, REAL[:, None]), m.linear_out(context)


@proves("leo_optimizer_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, C, H, 16), tokens()
    q, k, v = (heads(part) for part in m.qkv(x).chunk(3, -1))
    turns = torch.complex(m.rotary.cos[:T], -m.rotary.sin[:T])
    q, k = (torch.complex(*part.chunk(2, -1)) * turns for part in (q, k))
    q, k = (torch.cat([part.real, part.imag], -1) for part in (q, k))
    return m(x), m.w_o(merged(F.scaled_dot_product_attention(q, k, v, attn_mask=CAUSAL)))


@proves("self_attention_gan_tensorflow_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SelfAttention, C), tokens(B, C, 3, 4)
    m.gamma.data.fill_(0.5)
    k, q, v = (project(x).flatten(2).mT for project in (m.f_conv, m.g_conv, m.h_conv))
    context = F.scaled_dot_product_attention(q, k, v, scale=1.0)
    return m(x), x + context.mT.reshape(x.shape) / 2


@proves("diffusers_3207")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AttentionBlock, C, 4, 2), tokens(B, C, 2, 3)
    h = m.group_norm(x).flatten(2).mT
    context = m.proj_attn(attended(m.query(h), m.key(h), m.value(h)))
    return m(x), x + context.mT.reshape(x.shape)


@proves("espnet_2816")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.RelPositionMultiHeadedAttention, H, C), tokens()
    q, k, v = (heads(project(x)) for project in (m.linear_q, m.linear_k, m.linear_v))
    distances = (torch.arange(T)[:, None] - torch.arange(T)).abs()
    steps = torch.exp(torch.arange(0, C, 2).float() * -(math.log(10000.0) / C))
    angles = distances[..., None] * steps
    places = torch.stack([angles.sin(), angles.cos()], -1).flatten(-2).double()
    places = m.linear_pos(places).unflatten(-1, (H, -1))
    scores = (q + m.pos_bias_u) @ k.mT
    scores = scores + torch.einsum("bhid,ijhd->bhij", q + m.pos_bias_v, places)
    scores = (scores / 2).masked_fill(~REAL[:, None, None], float("-inf"))
    return m(x, REAL[:, None]), m.linear_out(merged(scores.softmax(-1) @ v))


@proves("hyprstream_1521")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.LlamaAttention, C, H, 2), tokens()
    return in_steps(m, x), m(x)[0]


@proves("aprender_2143")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AlibiSelfAttention, C, H), tokens()
    slopes = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256]).double()
    distances = torch.arange(T) - torch.arange(T)[:, None]
    bias = (slopes[:, None, None] * distances).masked_fill(~CAUSAL, float("-inf"))
    q, k, v = (heads(part) for part in m.qkv(x).chunk(3, -1))
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return m(x), m.proj(merged(context))
