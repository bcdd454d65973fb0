"""Known bugs of the number that hidden scores are set to."""

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


def _graphs() -> tuple[Any, ...]:
    """Return two graphs, of 4 and 5 nodes, with the spatial encodings of all pairs of nodes."""
    return torch.randn(9, 16), torch.randn(9, 9), torch.tensor([0, 4, 9])


def _captions() -> tuple[Any, ...]:
    """Return the states of a decoder after the words of two captions, and where there is a word."""
    return torch.randn(2, 6, 16), torch.arange(6) < torch.tensor([[6], [4]])


def _peptides() -> tuple[Any, ...]:
    """Return 5 amino acids of two peptides, their masses and charges, and 7 peaks of their spectra."""
    amino_acids = torch.randint(1, 20, (2, 5))
    return amino_acids, torch.rand(2), torch.tensor([2, 3]), torch.randn(2, 7, 32)


def _sequence() -> tuple[Any, ...]:
    """Return two sequences of the only length that there is."""
    return (torch.randn(2, 8, 32),)


def _pages() -> tuple[Any, ...]:
    """Return text with two images, and after which of them its tokens come."""
    shown = torch.arange(8)[:, None] >= torch.tensor([2, 5])
    return torch.randn(2, 8, 32), torch.randn(2, 2, 3, 32), shown.long().expand(2, 8, 2)


def _decoder_inputs() -> tuple[Any, ...]:
    """Return tokens, the cosines and sines of their positions, and a causal mask."""
    angles = torch.outer(torch.arange(8), 10000.0 ** -(torch.arange(4) / 4)).repeat(1, 2)[None]
    mask = torch.ones(8, 8, dtype=torch.bool).tril()[None, None]
    return torch.randn(2, 8, 32), (angles.cos(), angles.sin()), mask


CASES = (
    Case(
        "ribonanza_5",
        "MultiHeadAttention",
        "Shujun-He/RibonanzaNet#5",
        "mask-fill-too-small",
    ),
    Case("gluonts_1401", "SelfAttention", "awslabs/gluonts#1401", "mask-fill-too-small"),
    Case(
        "transformer_10", "MultiHeadAttention", "hyunwoongko/transformer#10", "mask-fill-too-small"
    ),
    Case(
        "good_features_1",
        "AttentionMIL",
        "georg-wolflein/good-features#1",
        "mask-fill-too-small",
        options=sizes(feature_size=16),
    ),
    Case(
        "transformer_lens_366",
        "Attention",
        "TransformerLensOrg/TransformerLens#366",
        "mask-fill-too-small",
        options={"causal": True},
    ),
    Case(
        "s3prl_579",
        "AttentivePooling",
        "s3prl/s3prl#579",
        "mask-fill-too-small",
        known_as=("padding-leak",),
        options=sizes(input_dim=16, output_dim=8),
    ),
    Case(
        "graphormer_pyg_14",
        "GraphormerMultiHeadAttention",
        "leffff/graphormer-pyg#14",
        "mask-fill-too-small",
        known_as=("batch-mixed",),
        options=sizes(num_heads=2, dim_in=16, dim_q=8, dim_k=8),
        example=_graphs,
    ),
    Case(
        "matchzoo_163",
        "MatchModule",
        "NTMC-Community/MatchZoo-py#163",
        "mask-fill-too-small",
        known_as=("padding-leak",),
    ),
    Case(
        "memory_compressed_attention_2",
        "MemoryCompressedAttention",
        "lucidrains/memory-compressed-attention#2",
        "mask-fill-positive",
        known_as=("output-not-finite", "mask-inverted"),
        options={"causal": True},
    ),
    Case(
        "apex_1105",
        "SelfAttention",
        "NVIDIA/apex#1105",
        "mask-fill-overflow",
        known_as=("crashes",),
    ),
    Case(
        "fairseq_3575",
        "TransformerEncoderLayer",
        "facebookresearch/fairseq#3575",
        "mask-fill-overflow",
        known_as=("crashes",),
    ),
    Case(
        "pytorch_benchmark_794",
        "MultiHeadedAttention",
        "pytorch/benchmark#794",
        "mask-fill-overflow",
        known_as=("crashes",),
        options=sizes(h=4, d_model=32),
    ),
    Case(
        "mist_17",
        "MultiheadAttention",
        "samgoldman97/mist#17",
        "mask-fill-too-small",
        known_as=("padding-leak",),
        options=sizes(embed_dim=32, num_heads=4),
    ),
    Case(
        "recnet_13",
        "LocalReconstructor",
        "hobincar/RecNet#13",
        "mask-fill-too-small",
        known_as=("mask-after-softmax", "mask-unused", "padding-leak", "rows-not-normalised"),
        options=sizes(feat_size=12, hidden_size=16, bottleneck_size=8),
        example=_captions,
    ),
    Case(
        "dnabert_102",
        "BertLayer",
        "jerryji1993/DNABERT#102",
        "mask-fill-too-small",
        known_as=("mask-unused", "padding-leak"),
    ),
    Case(
        "depthcharge_38",
        "PeptideDecoder",
        "wfondrie/depthcharge#38",
        "mask-fill-positive",
        known_as=("future-leak", "mask-fill-too-small"),
        options={"causal": True, **sizes()},
        example=_peptides,
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
        "transformers_26428",
        "IdeficsGatedCrossAttentionLayer",
        "huggingface/transformers#26428",
        "mask-fill-too-small",
        known_as=("nan-on-masked-rows", "padding-leak", "future-leak"),
        options=sizes(),
        example=_pages,
    ),
    Case(
        "stable_audio_tools_141",
        "Attention",
        "Stability-AI/stable-audio-tools#141",
        "mask-fill-too-small",
        known_as=("rows-not-normalised", "mask-after-softmax", "padding-leak", "length-dependent"),
        options=sizes(features=32, head_features=8, num_heads=4),
    ),
    Case(
        "transformers_41443",
        "Qwen3Attention",
        "huggingface/transformers#41443",
        "mask-fill-too-small",
        known_as=("mask-unused", "future-leak", "padding-leak"),
        options={
            "causal": True,
            **sizes(hidden_size=32, num_attention_heads=4, num_key_value_heads=2),
        },
        example=_decoder_inputs,
    ),
)


@proves("ribonanza_5")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, C, H, 4, 4), tokens()
    context = attended(m.w_qs(x), m.w_ks(x), m.w_vs(x), REAL)
    expected = m.layer_norm(m.fc(context) + x)
    return m(x, x, x, src_mask=REAL)[0][REAL], expected[REAL]


@proves("gluonts_1401")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SelfAttention, C, H), tokens()
    q, k, v = heads(m.q_proj(x)), heads(m.k_proj(x)), m.v_proj(x)[:, None].expand(-1, H, -1, -1)
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=REAL[:, None, None]).mean(1)
    return m(x, REAL.long()), m.out_proj(context)


@proves("transformer_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.MultiHeadAttention, C, H), tokens(), tokens()
    expected = m.w_concat(attended(m.w_q(x), m.w_k(y), m.w_v(y), REAL))
    return m(x, y, y, REAL[:, None, None]), expected


@proves("good_features_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AttentionMIL, C), tokens()
    alone = torch.cat(
        [m(row[None, real], real[None, real]) for row, real in zip(x, REAL, strict=True)]
    )
    return m(x, REAL), alone


@proves("transformer_lens_366")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H, 4), tokens()
    with torch.no_grad():
        m.W_Q *= 1e6  # scores below −1e5, as in pythia-70m
    q, k, v = (torch.einsum("bpm,hmd->bhpd", x, w) for w in (m.W_Q, m.W_K, m.W_V))
    context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return m(x), torch.einsum("bhqd,hdm->bqm", context, m.W_O) + m.b_O


@proves("s3prl_579")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AttentivePooling, C, 5), tokens()
    lengths = REAL.sum(-1)
    alone = [m(row[None, :n], n[None]) for row, n in zip(x, lengths, strict=True)]
    return m(x, lengths), torch.cat(alone)


@proves("graphormer_pyg_14")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.GraphormerMultiHeadAttention, 2, C, 8, 8), tokens(9, C)
    bias = tokens(9, 9)
    alone = [m(x[s], bias[s, s], torch.tensor([0, len(x[s])])) for s in (slice(4), slice(4, 9))]
    return m(x, bias, torch.tensor([0, 4, 9])), torch.cat(alone)


@proves("matchzoo_163")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.MatchModule, C), tokens(), tokens()
    alone = [
        m(row[None], other[None, real], torch.zeros(1, int(real.sum())))
        for row, other, real in zip(x, y, REAL, strict=True)
    ]
    return m(x, y, ~REAL), torch.cat(alone)


@proves("memory_compressed_attention_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MemoryCompressedAttention, C, H), tokens()
    q, k, v = m.to_qkv(x).chunk(3, -1)
    return m(x), m.to_out(attended(q, k, v, CAUSAL))


@proves("apex_1105")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SelfAttention, C, H), tokens()
    expected = m.output(attended(m.query(x), m.key(x), m.value(x), REAL))
    actual = copy.deepcopy(m).half()(x.half(), REAL).double()
    return torch.where((actual - expected).abs() < 1e-2, expected, actual), expected


@proves("fairseq_3575")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TransformerEncoderLayer, C, H), tokens(T, B, C)
    expected = m(x, attn_mask=~CAUSAL)
    actual = copy.deepcopy(m).half()(x.half(), attn_mask=~CAUSAL).double()
    return torch.where((actual - expected).abs() < 1e-2, expected, actual), expected


@proves("pytorch_benchmark_794")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadedAttention, H, C), tokens()
    q, k, v = (linear(x) for linear in m.linear_layers)
    expected = m.output_linear(attended(q, k, v, REAL))
    x, mask = x.half(), REAL[:, None, None].long()
    actual = m.half()(x, x, x, mask).double()
    return torch.where((actual - expected).abs() < 1e-2, expected, actual), expected


@proves("mist_17")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiheadAttention, C, H), tokens()
    q, k, v = F.linear(x, m.in_proj_weight, m.in_proj_bias).chunk(3, -1)
    return m(x, x, x, ~REAL)[0], m.out_proj(attended(q, k, v, REAL))


@proves("recnet_13")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, states = made(module.LocalReconstructor, 5, C, 7), tokens()
    alone = [m(row[None, real], real[None, real]) for row, real in zip(states, REAL, strict=True)]
    return m(states, REAL), torch.cat(alone)


@proves("dnabert_102")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.BertLayer, module.BertConfig(hidden_size=C)), tokens()
    alone = [m(row[None, real])[0] for row, real in zip(x, REAL, strict=True)]
    return m(x, REAL.long())[REAL], torch.cat(alone)


@proves("depthcharge_38")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, amino_acids = made(module.PeptideDecoder, C, H), torch.randint(1, 20, (B, T))
    spectra = tokens(B), torch.tensor([1, 2, 3]), tokens(B, 5, C)
    return m(amino_acids, *spectra)[:, :4], m(amino_acids[:, :3], *spectra)


@proves("linformer_pytorch_19")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MHAttention, T, C, H, 3), tokens()
    expected = m(x)
    actual = copy.deepcopy(m).half()(x.half()).double()
    return torch.where((actual - expected).abs() < 1e-2, expected, actual), expected


@proves("transformers_26428")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.IdeficsGatedCrossAttentionLayer, C, H, C), tokens()
    images, shown = tokens(B, 2, 3, C), torch.arange(T)[:, None] >= torch.tensor([2, 4])
    y, states, a = m.input_layernorm(x), images.flatten(1, 2), m.cross_attn
    late = attended(
        a.q_proj(y[:, 2:]),
        a.k_proj(states),
        a.v_proj(states),
        shown[2:].repeat_interleave(3, 1),
    )
    context = torch.cat([torch.zeros_like(y[:, :2]), a.o_proj(late)], 1)
    x_ = x + m.alpha_cross_attn.tanh() * context
    expected = x_ + m.alpha_dense.tanh() * m.mlp(m.post_attention_layernorm(x_))
    return m(x, images, shown.expand(B, T, 2)), expected


@proves("stable_audio_tools_141")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, text = made(module.Attention, C, head_features=4, num_heads=H), tokens(), tokens()
    k, v = m.to_kv(m.norm_context(text)).chunk(2, -1)
    return m(x, text, REAL), m.attention.to_out(attended(m.to_q(m.norm(x)), k, v, REAL))


@proves("transformers_41443")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Qwen3Attention, C, H, 2), tokens()
    angles = torch.outer(torch.arange(T), torch.tensor([1.0, 0.01])).double().repeat(1, 2)[None]
    q, k = m.q_norm(heads(m.q_proj(x))), m.k_norm(heads(m.k_proj(x), 2))
    context = F.scaled_dot_product_attention(
        rotated(q), rotated(k), heads(m.v_proj(x), 2), is_causal=True, enable_gqa=True
    )
    return m(x, (angles.cos(), angles.sin()), CAUSAL[None, None])[0], m.o_proj(merged(context))
