"""Known bugs of rotary and relative positions."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from upstream.cases import Case, sizes
from upstream.proofs import (
    CAUSAL,
    REAL,
    B,
    C,
    H,
    T,
    heads,
    made,
    merged,
    proves,
    rotated,
    tokens,
)

CASES = (
    Case(
        "executorch_2010",
        "Attention",
        "pytorch/executorch#2010",
        "rotary-offset",
        known_as=("cache-mismatch",),
        options={"causal": True},
    ),
    Case(
        "transformer_engine_536",
        "MultiheadAttention",
        "NVIDIA/TransformerEngine#536",
        "rotary-offset",
        known_as=("cache-mismatch", "stale-state"),
        options={"causal": True},
    ),
    Case(
        "train_your_gpt_6",
        "MultiHeadAttention",
        "raiyanyahya/how-to-train-your-gpt#6",
        "rotary-mismatch",
        options={"causal": True},
    ),
    Case("ark_nlp_47", "RoPEAttention", "xiangking/ark-nlp#47", "rotary-mismatch"),
    Case(
        "open_lm_4",
        "CustomAttn",
        "mlfoundations/open_lm#4",
        "rotary-mismatch",
        known_as=("rotary-offset",),
        options={"causal": True},
    ),
    Case(
        "vjepa2_15",
        "RoPEAttention",
        "facebookresearch/vjepa2#15",
        "rotary-mismatch",
        options=sizes(dim=48, num_heads=2, grid_size=2),
    ),
    Case(
        "tpa_4",
        "MLA",
        "tensorgi/TPA#4",
        "rotary-mismatch",
        options={"causal": True, **sizes(n_embd=32, n_head=4)},
    ),
    Case(
        "gpt_neox_1003",
        "ParallelSelfAttention",
        "EleutherAI/gpt-neox#1003",
        "rotary-precision",
        options={"causal": True},
    ),
    Case(
        "modalities_462",
        "CausalSelfAttention",
        "Modalities/modalities#462",
        "rotary-precision",
        options={"causal": True, **sizes(n_head_q=4, n_head_kv=2, n_embd=32)},
    ),
    Case(
        "open_transformer_25",
        "MultiHeadedSelfAttentionWithRelPos",
        "ZhengkunTian/OpenTransformer#25",
        "relative-shift-wrong",
    ),
    Case(
        "conformer_55",
        "MultiHeadedSelfAttentionModule",
        "sooftware/conformer#55",
        "relative-shift-wrong",
    ),
    Case(
        "audio_flamingo_27",
        "TransformerEncoder",
        "NVIDIA/audio-flamingo#27",
        "rotary-mismatch",
        known_as=("length-dependent", "crashes"),
    ),
    Case(
        "x_transformers_103",
        "Attention",
        "lucidrains/x-transformers#103",
        "relative-shift-wrong",
        known_as=("cache-mismatch", "causal-alignment"),
        options={"causal": True, **sizes(dim=32, dim_head=8, heads=4)},
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
        "leo_optimizer_2",
        "MultiHeadAttention",
        "vukrosic/leo-optimizer#2",
        "rotary-mismatch",
        options={"causal": True, **sizes(d_model=32, n_heads=4, max_seq_len=16)},
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
        "mlx_lm_1396",
        "LanguageModel",
        "ml-explore/mlx-lm#1396",
        "rotary-offset",
        known_as=("rotary-mismatch", "cache-mismatch"),
        options={"causal": True},
    ),
    Case(
        "transformers_47328",
        "Token2WavDiTModel",
        "huggingface/transformers#47328",
        "rotary-layout",
        known_as=("rotary-mismatch",),
    ),
)


@proves("executorch_2010")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H), tokens()
    steps = torch.cat([m(x[:, :3], 0), m(x[:, 3:5], 3), m(x[:, 5:], 5)], 1)
    return steps, copy.deepcopy(m)(x, 0)


@proves("transformer_engine_536")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiheadAttention, C, H), tokens()
    params, steps = module.InferenceParams(B, T), []
    for tokens_of_step in x.split([4, 1, 1], dim=1):
        rows = []
        for start, micro_batch in zip((0, 2), tokens_of_step.split([2, 1]), strict=True):
            params.batch_size_offset = start
            rows.append(m(micro_batch, params))
        params.sequence_len_offset += tokens_of_step.shape[1]
        steps.append(torch.cat(rows))
    return torch.cat(steps, 1), m(x)


def _rotary(m: nn.Module, x: Tensor, names: str, keep: Tensor | None) -> Tensor:
    """Return the context of attention with interleaved rotary embeddings."""
    q, k, v = (heads(getattr(m, name)(x)) for name in names.split())
    q, k = rotated(q, interleaved=True), rotated(k, interleaved=True)
    return merged(F.scaled_dot_product_attention(q, k, v, attn_mask=keep))


@proves("train_your_gpt_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, 24, H), tokens(B, T, 24)
    return m(x), m.W_o(_rotary(m, x, "W_q W_k W_v", CAUSAL))


@proves("ark_nlp_47")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.RoPEAttention, 24, H), tokens(B, T, 24)
    return m(x), m.o_dense(_rotary(m, x, "q_dense k_dense v_dense", None))


@proves("open_lm_4")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.CustomAttn, C, H), tokens()
    q, k, v = (heads(part) for part in m.in_proj(x).chunk(3, -1))
    context = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
    return m(x), m.out_proj(merged(context))


@proves("vjepa2_15")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.RoPEAttention, 28, 2, grid_size=2), tokens(B, 8, 28)
    axes = (torch.arange(8) // 4, torch.arange(8) // 2 % 2, torch.arange(8) % 2)
    angles = [torch.outer(a.double(), 10000.0 ** -(torch.arange(2) / 2).double()) for a in axes]
    turns = torch.polar(torch.ones(8, 6).double(), torch.cat(angles, -1))
    turns = torch.cat([turns, torch.ones(8, 1)], -1)
    q, k, v = (heads(part, 2) for part in m.qkv(x).chunk(3, -1))
    q, k = (
        torch.view_as_real(torch.view_as_complex(t.unflatten(-1, (-1, 2))) * turns).flatten(-2)
        for t in (q, k)
    )
    return m(x), m.proj(merged(F.scaled_dot_product_attention(q, k, v)))


@proves("tpa_4")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MLA, C, H), tokens()
    q, q_rope = heads(m.c_q(x)).split([4, 4], -1)
    k, v = (heads(linear(m.compress_kv(x))) for linear in (m.c_k, m.c_v))
    k_rope = rotated(m.k_rope(x))[:, None].expand(-1, H, -1, -1)
    q, k = torch.cat([q, rotated(q_rope)], -1), torch.cat([k, k_rope], -1)
    return m(x), m.c_proj(merged(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


@proves("gpt_neox_1003")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = module.RotaryEmbedding(8).to(torch.bfloat16), tokens(1).bfloat16()
    angles = torch.outer(torch.arange(600.0), m.inv_freq.float())
    return m(x, 600)[0].float().round(decimals=1), torch.cat(
        [angles, angles], -1
    ).cos().bfloat16().float().round(decimals=1)


@proves("modalities_462")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = module.RotaryTransform(32, 4).to(torch.bfloat16), tokens(1, 1, 600, 8).bfloat16()
    angles = torch.outer(torch.arange(600.0), m.inv_freq.float())
    expected = torch.cat([angles, angles], -1).cos().bfloat16().float()
    return m.cos_sin_tables(x)[0][0, 0].float(), expected


@proves("open_transformer_25")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadedSelfAttentionWithRelPos, H, C), tokens()
    q, v, k = m.qvk_proj(x).chunk(3, -1)
    q = q.unflatten(-1, (H, -1))
    distances = torch.arange(T)[:, None] - torch.arange(T)
    sinusoids = m.positions(x, distances.flatten().float())
    pos = m.pos_proj(sinusoids).view(T, T, H, -1)
    scores = (q + m.posu).transpose(1, 2) @ heads(k).mT
    scores = scores + torch.einsum("bihd,ijhd->bhij", q + m.posv, pos)
    return m(x), m.output_proj(merged((scores / 2.0).softmax(-1) @ heads(v)))


@proves("conformer_55")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, frames = made(module.MultiHeadedSelfAttentionModule, C, H), tokens()
    x, a = m.layer_norm(frames), m.attention
    q = a.query_proj(x).unflatten(-1, (H, -1))
    distances = torch.arange(T)[:, None] - torch.arange(T)
    pos = a.pos_proj(m.positional_encoding(distances.flatten()).double()).view(T, T, H, -1)
    scores = (q + a.u_bias).transpose(1, 2) @ heads(a.key_proj(x)).mT
    scores = scores + torch.einsum("bihd,ijhd->bhij", q + a.v_bias, pos)
    return m(frames), a.out_proj(merged((scores / 2.0).softmax(-1) @ heads(a.value_proj(x))))


@proves("audio_flamingo_27")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TransformerEncoder, C, H, 4, 4), tokens()
    a = m.slf_attn
    q, k = (rotated(heads(project(x)), interleaved=True) for project in (a.w_qs, a.w_ks))
    context = merged(F.scaled_dot_product_attention(q, k, heads(a.w_vs(x))))
    return m(x), m.layer_norm(x + a.fc(context))


@proves("x_transformers_103")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, 5, H), tokens()
    return m(x[:, 4:], mem=x[:, :4]), m(x)[:, 4:]


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


@proves("leo_optimizer_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, C, H, 16), tokens()
    q, k, v = (heads(part) for part in m.qkv(x).chunk(3, -1))
    turns = torch.complex(m.rotary.cos[:T], -m.rotary.sin[:T])
    q, k = (torch.complex(*part.chunk(2, -1)) * turns for part in (q, k))
    q, k = (torch.cat([part.real, part.imag], -1) for part in (q, k))
    return m(x), m.w_o(merged(F.scaled_dot_product_attention(q, k, v, attn_mask=CAUSAL)))


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


@proves("mlx_lm_1396")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.LanguageModel, module.TextConfig(hidden_size=C, head_dim=4)), tokens()
    expected, k, v = x, x, x
    for layer in m.layers:
        a, y = layer.self_attn, layer.input_layernorm(expected)
        if not a.is_kv_shared_layer:
            k, v = rotated(heads(a.k_proj(y), 2)), heads(a.v_proj(y), 2)
        q = rotated(heads(a.q_proj(y)))
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        expected = expected + a.o_proj(merged(context))
    cache = m.make_cache()
    steps = torch.cat([m(part, cache) for part in x.split([3, 2, 1], 1)], 1)
    return torch.stack([m(x), steps]), expected.expand(2, B, T, C)


@proves("transformers_47328")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.Token2WavDiTModel, module.DiTConfig(hidden_size=C, head_dim=C // H))
    x, block = tokens(), m.transformer_blocks[0]
    y, a = block.attn_norm(x), block.attn
    q, k = (rotated(heads(project(y)), interleaved=True) for project in (a.to_q, a.to_k))
    x_ = x + a.to_out(merged(F.scaled_dot_product_attention(q, k, heads(a.to_v(y)))))
    return m(x), x_ + block.ff(block.ff_norm(x_))
