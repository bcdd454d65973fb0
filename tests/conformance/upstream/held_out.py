"""The held-out bugs of public projects, with proofs: they were re-created without running the check or reading it.

They guide no change of it. Once a bug guides a change, it is moved to the known ones.
"""

from __future__ import annotations

import copy
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


def _beats_and_notes() -> tuple[Any, ...]:
    """Return two rhythms of 6 beats, and the note before each beat."""
    return torch.rand(2, 6, 2), torch.randint(0, 10, (2, 6))


def _views() -> tuple[Any, ...]:
    """Return two bird's eye views of 4 × 4 cells, and those of the frame before."""
    return torch.randn(2, 16, 32), torch.randn(2, 16, 32)


def _images_and_questions() -> tuple[Any, ...]:
    """Return two feature maps, two questions of up to 6 words, and the numbers of words."""
    return torch.randn(2, 4, 3, 3), torch.randint(1, 20, (2, 6)), torch.tensor([6, 4])


def _sequence() -> tuple[Any, ...]:
    """Return two sequences of the only length that there is."""
    return (torch.randn(2, 8, 32),)


def _roads() -> tuple[Any, ...]:
    """Return 5 roads at 3 times, twice, and the sources and targets of 8 edges."""
    edges = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 4], [1, 2, 3, 4, 0, 2, 4, 1]])
    return torch.randn(2, 5, 3, 5), edges


HELD_OUT = (
    Case(
        "tiny_transformers_71",
        "CausalAttention",
        "PAIR-code/tiny-transformers#71",
        "scale-missing",
        known_as=("scale-wrong",),
        options={"causal": True},
    ),
    Case(
        "everybody_compose_53",
        "AttentionRNN",
        "tsunrise/everybody-compose#53",
        "softmax-wrong-dim",
        known_as=("rows-not-normalised", "attention-ignored"),
        options=sizes(num_notes=10, embed_dim=8, hidden_dim=12),
        example=_beats_and_notes,
    ),
    Case(
        "keras_23038",
        "DecoderSelfAttention",
        "keras-team/keras#23038",
        "future-leak",
        known_as=("mask-unused",),
        options={"causal": True},
    ),
    Case(
        "movie_gen_8",
        "TemporalTransformer",
        "kyegomez/movie-gen#8",
        "batch-mixed",
        options=sizes(),
    ),
    Case(
        "uniad_268",
        "TemporalSelfAttention",
        "OpenDriveLab/UniAD#268",
        "batch-mixed",
        options=sizes(embed_dims=32, bev_h=4, bev_w=4),
        example=_views,
    ),
    Case(
        "cellflow_226",
        "TokenAttentionPooling",
        "theislab/CellFlow#226",
        "mask-unused",
        known_as=("padding-leak",),
        options=sizes(dim=32, num_heads=4),
    ),
    Case(
        "mac_network_7",
        "MACNetwork",
        "rosinality/mac-network-pytorch#7",
        "padding-leak",
        known_as=("mask-unused",),
        options=sizes(n_vocab=20, dim=8, embed_hidden=12, in_channels=4),
        example=_images_and_questions,
    ),
    Case(
        "burn_4697",
        "CausalSelfAttention",
        "tracel-ai/burn#4697",
        "nan-on-masked-rows",
        known_as=("output-not-finite",),
        options={"causal": True},
    ),
    Case(
        "linformer_pytorch_19",
        "MHAttention",
        "tatp22/linformer-pytorch#19",
        "mask-fill-overflow",
        known_as=("crashes",),
        options=sizes(input_size=8, channels=32, nhead=4, dim_k=4),
        example=_sequence,
    ),
    Case(
        "softmax_n_32",
        "AttentionN",
        "softmax1/Flash-Attention-Softmax-N#32",
        "dropout-in-eval",
        options=sizes(dim=32, heads=4, dropout=0.1),
    ),
    Case(
        "speechbrain_3073",
        "RelPosMHAXL",
        "speechbrain/speechbrain#3073",
        "relative-shift-wrong",
        known_as=("weights-wrong",),
    ),
    Case(
        "nntrainer_3982",
        "DisentangledSelfAttention",
        "nntrainer/nntrainer#3982",
        "relative-shift-wrong",
        known_as=("weights-wrong",),
        options=sizes(hidden_size=32, num_heads=4),
    ),
    Case(
        "mlx_3071",
        "AlibiAttention",
        "ml-explore/mlx#3071",
        "weights-wrong",
        options={"causal": True, **sizes(dims=48, num_heads=6)},
    ),
    Case(
        "omlx_2363",
        "Attention",
        "jundot/omlx#2363",
        "cache-mismatch",
        known_as=("rotary-offset", "rotary-mismatch"),
        options={"causal": True, **sizes(dims=32, n_heads=4, n_kv_heads=2)},
    ),
    Case(
        "truxify_13116",
        "SpatialTemporalGAT",
        "KanishJebaMathewM/Truxify#13116",
        "batch-mixed",
        known_as=("length-dependent", "attention-ignored"),
        options=sizes(),
        example=_roads,
    ),
    Case(
        "vllm_13686",
        "Olmo2Attention",
        "vllm-project/vllm#13686",
        "crashes",
        options={"causal": True, **sizes(hidden_size=32, num_heads=4, num_kv_heads=2)},
    ),
)


def _each(call: Any, *inputs: Tensor) -> Tensor:
    """Return the outputs of a call for each sample alone."""
    return torch.cat([call(*sample) for sample in zip(*(x.split(1) for x in inputs), strict=True)])


@proves("tiny_transformers_71")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.CausalAttention, module.AttnConfig(d_model=C, d_head=5)), tokens()
    q, k, v = (x[:, None] @ w for w in (m.w_q, m.w_k, m.w_v))
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=CAUSAL)
    return m(x), (context @ m.w_o).sum(1)


@proves("everybody_compose_53")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, notes = made(module.AttentionRNN, 9, 5, 7), tokens(B, T, 2), torch.randint(9, (B, T))
    beats, state, logits = m.beat_encoder(x)[0], None, []
    for t in range(T):
        hidden = torch.zeros(1, B, 7).double() if state is None else state[0]
        pairs = torch.cat([hidden[0, :, None].expand(B, T, 7), beats], -1)
        scores = pairs
        for layer in list(m.score)[:-1]:
            scores = layer(scores)
        context = scores.mT.softmax(-1) @ beats
        mixed = torch.cat([context, m.note_embedding(notes[:, t : t + 1])], -1)
        out, state = m.decoder(mixed + m.mix(mixed), state)
        logits.append(m.to_notes(out))
    return m(x, notes), torch.cat(logits, 1)


@proves("keras_23038")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.DecoderSelfAttention, C, H), tokens()
    a = m.attention
    context = attended(a.query_dense(x), a.key_dense(x), a.value_dense(x), CAUSAL)
    return m(x), m.norm(x + a.output_dense(context))


@proves("cellflow_226")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TokenAttentionPooling, C, H), tokens()
    alone = [m(row[None, real], real[None, real]) for row, real in zip(x, REAL, strict=True)]
    return m(x, REAL), torch.cat(alone)


@proves("mac_network_7")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, maps = made(module.MACNetwork, 20, 5, 7, 3), tokens(B, 3, 2, 2)
    words, counts = torch.randint(1, 20, (B, T)), REAL.sum(1)
    alone = [m(maps[[i]], words[[i], : counts[i]], counts[[i]]) for i in range(B)]
    return m(maps, words, counts), torch.cat(alone)


@proves("burn_4697")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, real = made(module.CausalSelfAttention, C, H), tokens(), REAL.flip(1)
    q, k, v = (heads(project(x)) for project in (m.query, m.key, m.value))
    seen = CAUSAL & real[:, None, None]
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    context = torch.where(seen.any(-1, keepdim=True), context, 0.0)
    return m(x, ~real), m.output(merged(context))


@proves("linformer_pytorch_19")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MHAttention, T, C, H, 3), tokens()
    expected = m(x)
    actual = copy.deepcopy(m).half()(x.half()).double()
    return torch.where((actual - expected).abs() < 1e-2, expected, actual), expected


@proves("movie_gen_8")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TemporalTransformer, C, 1, H, 24), tokens()
    (block,) = m.blocks
    y = x + m.pos_embed[:, :T]
    weights, biases = block.attn.in_proj_weight, block.attn.in_proj_bias
    q, k, v = F.linear(block.norm1(y), weights, biases).chunk(3, -1)
    y = y + block.attn.out_proj(attended(q, k, v))
    return m(x), m.norm(y + block.mlp(block.norm2(y)))


@proves("uniad_268")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, view, before = made(module.TemporalSelfAttention, C, 2, 3), tokens(), tokens()
    return m(view, before), _each(m, view, before)


@proves("truxify_13116")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SpatialTemporalGAT, 5), tokens(B, 4, 3, 5)
    edges = torch.tensor([[0, 1, 2, 3, 0, 2], [1, 2, 3, 0, 2, 1]])
    h = x.transpose(1, 2).reshape(-1, 4, 5)
    for layer in m.spatial_layers:
        h = F.elu(torch.stack([layer(graph, edges) for graph in h]))
    _, last = m.temporal(h.view(B, 3, 4, -1).transpose(1, 2).flatten(0, 1))
    return m(x, edges), m.head(last[0]).view(B, 4, -1)


@proves("softmax_n_32")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AttentionN, C, H, n=1.0, dropout=0.5), tokens()
    q, k, v = (heads(part) for part in m.qkv(x).chunk(3, -1))
    scores = (q @ k.mT / 2).exp()
    return m(x), m.out(merged(scores / (1 + scores.sum(-1, keepdim=True)) @ v))


@proves("speechbrain_3073")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.RelPosMHAXL, C, H), tokens()
    q, k, v = (part.transpose(1, 2) for part in m.in_proj(x).view(B, T, H, -1).chunk(3, -1))
    distances = torch.arange(T)[:, None] - torch.arange(T)
    angles = distances[..., None] * m.positional_encoding.inv_freq
    places = torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)
    places = m.linear_pos(places).unflatten(-1, (H, -1))
    scores = (q + m.pos_bias_u[:, None]) @ k.mT
    scores = scores + torch.einsum("bhid,ijhd->bhij", q + m.pos_bias_v[:, None], places)
    return m(x), m.out_proj(merged((scores / 2).softmax(-1) @ v))


@proves("nntrainer_3982")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.DisentangledSelfAttention, C, H), tokens()
    q, k, v = (heads(project(x)) for project in (m.query_proj, m.key_proj, m.value_proj))
    distances = (torch.arange(T)[:, None] - torch.arange(T) + 4).clamp(0, 7)
    of_keys, of_queries = (
        project(m.rel_embeddings).unflatten(-1, (H, -1))[distances]
        for project in (m.pos_key_proj, m.pos_query_proj)
    )
    scores = q @ k.mT + torch.einsum("bhid,ijhd->bhij", q, of_keys)
    scores = scores + torch.einsum("bhjd,ijhd->bhij", k, of_queries)
    return m(x), m.dense(merged((scores / 12**0.5).softmax(-1) @ v))


@proves("mlx_3071")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AlibiAttention, 24, 6), tokens(B, T, 24)
    slopes = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]).double()
    distances = torch.arange(T) - torch.arange(T)[:, None]
    bias = (slopes[:, None, None] * distances).masked_fill(~CAUSAL, float("-inf"))
    q, k, v = (heads(project(x), 6) for project in (m.query_proj, m.key_proj, m.value_proj))
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return m(x), m.out_proj(merged(context))


@proves("omlx_2363")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, cache = made(module.Attention, 24, H, 2), tokens(B, T, 24), module.KVCache()
    return torch.cat([m(part, cache) for part in x.split([3, 2, 1], dim=1)], 1), m(x)


@proves("vllm_13686")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Olmo2Attention, C, H, 2), tokens()
    q, k, v = m.qkv_proj(x).split([C, 8, 8], -1)
    q, k = rotated(heads(m.q_norm(q))), rotated(heads(m.k_norm(k), 2))
    context = F.scaled_dot_product_attention(q, k, heads(v, 2), attn_mask=CAUSAL, enable_gqa=True)
    return m(x), m.o_proj(merged(context))
