"""More held-out bugs of public projects, with proofs: they were re-created without running the check or reading it.

They guide no change of it. Once a bug guides a change, it is moved to the known ones.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from upstream.cases import Case, sizes
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


def _views() -> tuple[Any, ...]:
    """Return the feature maps of 2 views of 3 × 4 pixels, twice."""
    return (torch.randn(2, 16, 2, 3, 4),)


def _angles(length: int, half: int) -> Tensor:
    """Return the angles by which the pairs of a head are rotated at each position."""
    return torch.outer(torch.arange(length), 10000.0 ** -(torch.arange(half) / half))


def _tokens_and_positions() -> tuple[Any, ...]:
    """Return 8 tokens, and the cosines and sines of their positions."""
    angles = _angles(8, 4)
    return torch.randn(2, 8, 32), (angles.cos(), angles.sin())


def _patches_of_two_images() -> tuple[Any, ...]:
    """Return the patches of images of 2 × 3 and 2 × 2, their rotations, and which are of the same image."""
    places = torch.tensor([[r, c] for w in (3, 2) for r in range(2) for c in range(w)])
    angles = (places[:, :, None] * torch.tensor([1.0, 0.1])).flatten(1)
    image = torch.tensor([0] * 6 + [1] * 4)
    rotations = torch.polar(torch.ones_like(angles), angles)
    return torch.randn(1, 10, 32), rotations, image[:, None] == image


def _groups() -> tuple[Any, ...]:
    """Return 4 tokens of a task, and 3 of observations and 2 of readouts at 3 times."""
    return torch.randn(2, 4, 32), torch.randn(2, 3, 3, 32), torch.randn(2, 3, 2, 32)


def _facts() -> tuple[Any, ...]:
    """Return 5 facts, a question, and the memory so far."""
    return torch.randn(2, 5, 16), torch.randn(2, 16), torch.randn(2, 16)


def _translation() -> tuple[Any, ...]:
    """Return 6 words so far, 5 words of the encoder, and the causal mask."""
    return torch.randn(2, 6, 32), torch.randn(2, 5, 32), torch.ones(1, 6, 6).tril()


def _nodes() -> tuple[Any, ...]:
    """Return the nodes of a graph."""
    return (torch.randn(7, 16),)


def _image_tokens() -> tuple[Any, ...]:
    """Return a class token and 3 × 4 patches."""
    return (torch.randn(2, 13, 32),)


TWO: tuple[Case, ...] = (
    Case(
        "nlca_net_11",
        "SpaceTimeNonlocalBlock",
        "ZhiboRao/NLCA_Net#11",
        "rows-not-normalised",
        known_as=("softmax-wrong-dim", "weights-wrong"),
        options=sizes(in_channels=16),
        example=_views,
    ),
    Case(
        "atkt_1",
        "AttentionModule",
        "xiaopengguo/ATKT#1",
        "future-leak",
        known_as=("mask-after-softmax", "rows-not-normalised"),
        options={"causal": True, **sizes(hidden_dim=32)},
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
        "reclearn_54",
        "MultiHeadAttention",
        "ZiyaoGeng/RecLearn#54",
        "crashes",
        known_as=("mask-broadcast",),
        options={"causal": True, **sizes(d_model=32, num_heads=4)},
    ),
    Case(
        "vllm_omni_5865",
        "CrossAttention",
        "vllm-project/vllm-omni#5865",
        "context-wrong",
        known_as=("batch-mixed", "mask-broadcast", "padding-leak"),
        options=sizes(dim=32, num_heads=4, cross_attention_dim=24),
    ),
    Case(
        "mistral_inference_218",
        "TransformerBlock",
        "mistralai/mistral-inference#218",
        "mask-unused",
        known_as=("batch-mixed",),
        options=sizes(dim=32, hidden_dim=64, n_heads=4),
        example=_patches_of_two_images,
    ),
    Case(
        "octo_75",
        "BlockTransformer",
        "octo-models/octo#75",
        "weights-wrong",
        options=sizes(token_embedding_size=32, num_heads=4),
        example=_groups,
    ),
    Case(
        "dmn_tensorflow_6",
        "EpisodeModule",
        "therne/dmn-tensorflow#6",
        "softmax-wrong-dim",
        known_as=("batch-mixed", "rows-not-normalised"),
        options=sizes(num_hidden=16),
        example=_facts,
    ),
    Case(
        "nlp_torchtext_2",
        "DecoderLayer",
        "rexrex9/nlp_torchtext#2",
        "crashes",
        known_as=("future-leak", "context-wrong", "keys-values-swapped"),
        options={"causal": True, **sizes(e_dim=32, h_dim=8, n_heads=4)},
        example=_translation,
    ),
    Case(
        "simgnn_2",
        "Attention",
        "pulkit1joshi/SimGNN#2",
        "attention-ignored",
        known_as=("context-wrong",),
        options=sizes(filters_3=16),
        example=_nodes,
    ),
    Case(
        "squeezeformer_1",
        "MultiHeadedSelfAttentionModule",
        "upskyy/Squeezeformer#1",
        "scale-wrong",
        options=sizes(d_model=32, num_heads=4),
    ),
    Case(
        "tt_metal_42891",
        "BeitSdpaSelfAttention",
        "tenstorrent/tt-metal#42891",
        "weights-wrong",
        known_as=("scale-wrong", "relative-shift-wrong"),
        options=sizes(hidden_size=32, num_attention_heads=4, window_size=(3, 4)),
        example=_image_tokens,
    ),
)


@proves("nlca_net_11")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SpaceTimeNonlocalBlock, C), tokens(B, C, 2, 2, 3)
    q, k, v = (conv(x).flatten(2).mT for conv in (m.theta, m.phi, m.g))
    context = F.scaled_dot_product_attention(q, k, v, scale=1.0)
    return m(x), x + m.out(context.mT.reshape(B, C // 2, 2, 2, 3))


@proves("atkt_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AttentionModule, C, 5), tokens()
    scores = m.similarity(m.mlp(x).tanh())
    past = [(scores[:, :t].softmax(1) * x[:, :t]).sum(1) for t in range(1, T + 1)]
    return m(x), torch.cat([torch.stack(past, 1), x], -1)


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


@proves("reclearn_54")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, C, H), tokens()
    keep = CAUSAL & REAL[:, None, None]
    q, k, v = (heads(project(x)) for project in (m.wq, m.wk, m.wv))
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
    return m(x, x, x, REAL), merged(context)


@proves("vllm_omni_5865")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, prompt = made(module.CrossAttention, C, H, 12), tokens(B, 8, C), tokens(B, T, 12)
    context = attended(m.to_q(x), m.to_k(prompt), m.to_v(prompt), REAL)
    return m(x, prompt, REAL), m.to_out(context)


@proves("mistral_inference_218")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TransformerBlock, C, 24, H), tokens(1, 10, C)
    angles = [module.precompute_freqs_cis_2d(C // H, 2, w).to(torch.cdouble) for w in (3, 2)]
    alone = [m(*image) for image in zip(x.split([6, 4], 1), angles, strict=True)]
    return m(x, torch.cat(angles), module.block_diagonal_mask([6, 4])), torch.cat(alone, 1)


@proves("octo_75")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, task = made(module.BlockTransformer, C, H), tokens(B, 2, C)
    obs, readout = tokens(B, 2, 3, C), tokens(B, 2, 2, C)
    without = m(task, obs, readout[:, :, :0])  # no task and no observation looks at a readout
    return torch.cat([out.flatten(1) for out in m(task, obs, readout)[:2]], 1), torch.cat(
        [out.flatten(1) for out in without[:2]], 1
    )


@proves("dmn_tensorflow_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, facts, question, memory = made(module.EpisodeModule, C), tokens(), tokens(B, C), tokens(B, C)
    q, k = question[:, None], memory[:, None]
    parts = [facts * q, facts * k, (facts - q).abs(), (facts - k).abs()]
    gates = m.w2(m.w1(torch.cat(parts, -1)).tanh())[..., 0].softmax(-1)
    state = torch.zeros_like(memory)
    for t in range(T):
        state = m.gru(facts[:, t], state, gates[:, t, None])
    return m(facts, question, memory), state


@proves("nlp_torchtext_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, source = made(module.DecoderLayer, C, 4, H), tokens(), tokens()

    def multi_head(layer: Any, x: Tensor, memory: Tensor, keep: Tensor | None = None) -> Tensor:
        q = torch.cat([head.lQ(x) for head in layer.atte_layers], -1)
        k = torch.cat([head.lK(memory) for head in layer.atte_layers], -1)
        v = torch.cat([head.lV(memory) for head in layer.atte_layers], -1)
        return layer.l(attended(q, k, v, keep))

    y = m.sa_LN(x + multi_head(m.self_attention, x, x, CAUSAL))
    y = m.ia_LN(y + multi_head(m.interactive_attention, y, source))
    return m(x, source, CAUSAL[None]), m.ff_LN(y + m.ff_layer(y))


@proves("simgnn_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, nodes = made(module.Attention, C), tokens(7, C)
    weights = (nodes @ (nodes.mean(0) @ m.weights_att).tanh()).sigmoid()
    return m(nodes), (weights[:, None] * nodes).sum(0, keepdim=True)


@proves("squeezeformer_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadedSelfAttentionModule, C, H), tokens()
    a = m.attention
    q, k, v = (heads(project(x)) for project in (a.query_proj, a.key_proj, a.value_proj))
    distances = torch.arange(T)[:, None] - torch.arange(T)
    angles = distances[..., None] * m.positional_encoding.div_term
    places = a.pos_proj(torch.stack([angles.sin(), angles.cos()], -1).flatten(-2))
    scores = (q + a.u_bias[:, None]) @ k.mT
    scores = scores + torch.einsum(
        "bhid,ijhd->bhij", q + a.v_bias[:, None], places.unflatten(-1, (H, -1))
    )
    return m(x, ~REAL[:, None]), a.out_proj(
        merged((scores / 2).masked_fill(~REAL[:, None, None], -torch.inf).softmax(-1) @ v)
    )


@proves("tt_metal_42891")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.BeitSdpaSelfAttention, C, H, (2, 3)), tokens(B, 7, C)
    with torch.no_grad():
        m.relative_position_bias.relative_position_bias_table += tokens(18, H)  # as after training
    q, k, v = (heads(project(x)) for project in (m.query, m.key, m.value))
    bias = m.relative_position_bias()
    return m(x), merged(F.scaled_dot_product_attention(q, k, v, attn_mask=bias))
