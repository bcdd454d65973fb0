"""The held-out bugs of public projects, with proofs: they were re-created without running the check or reading it.

They guide no change of it. Once a bug guides a change, it is moved to the known ones.
"""

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
    in_steps,
    made,
    merged,
    proves,
    rotated,
    tokens,
)


def _scene() -> tuple[Any, ...]:
    """Return 4 trajectories, the condition, 6 tokens of a scene that has only 4, and which neighbors are missing."""
    scene = torch.randn(2, 6, 32)
    scene[:, 4:] = 0
    missing = torch.tensor([[False, False, True], [False, True, True]])
    return torch.randn(2, 4, 32), torch.randn(2, 32), scene, missing


def _targets_and_memory() -> tuple[Any, ...]:
    """Return 6 tokens and 5 tokens of the encoder, both with the time first."""
    return torch.randn(6, 2, 32), torch.randn(5, 2, 32)


def _two_stages() -> tuple[Any, ...]:
    """Return what two stages know."""
    return (torch.randn(3, 2, 32),)


def _exercises() -> tuple[Any, ...]:
    """Return 6 exercises as queries and keys, their answers as values, and the mask of what was before."""
    exercises = torch.randn(2, 6, 32)
    mask = torch.ones(1, 1, 6, 6).tril()
    return exercises, exercises, torch.randn(2, 6, 32), mask


def _queries_keys_values() -> tuple[Any, ...]:
    """Return the queries, keys and values of 12 tokens."""
    return torch.randn(2, 12, 16), torch.randn(2, 12, 16), torch.randn(2, 12, 16)


def _cells() -> tuple[Any, ...]:
    """Return the states of 5 cells, and the drug that each was given."""
    return torch.randn(5, 16), F.one_hot(torch.tensor([0, 2, 1, 1, 0]), 3).float()


def _tokens_and_empty_cache() -> tuple[Any, ...]:
    """Return 6 tokens, and the keys, values and length of an empty cache."""
    return torch.randn(2, 6, 32), (torch.zeros(2, 32, 4, 8), torch.zeros(2, 32, 4, 8), 0)


def _encoder_and_decoder_states() -> tuple[Any, ...]:
    """Return the states of an encoder and the state of a decoder."""
    return torch.randn(2, 6, 32), torch.randn(2, 32)


HELD_OUT: tuple[Case, ...] = (
    Case(
        "dl4proteins_12",
        "MultiHeadAttention",
        "Graylab/DL4Proteins-notebooks#12",
        "scale-wrong",
        options={"causal": True, **sizes(n_embd=32, num_heads=4, block_size=64)},
    ),
    Case(
        "ibl_mtm_13",
        "NeuralAttention",
        "colehurwitz/IBL_MtM_model#13",
        "dropout-in-eval",
        options=sizes(hidden_size=32, n_heads=4),
    ),
    Case(
        "axolotl_3735",
        "DiffusionAttention",
        "axolotl-ai-cloud/axolotl#3735",
        "padding-leak",
        known_as=("mask-unused",),
        options=sizes(hidden_size=32, num_attention_heads=4),
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
        "diffusion_planner_156",
        "DiT",
        "tier4/Diffusion-Planner#156",
        "padding-leak",
        known_as=("mask-unused",),
        options=sizes(depth=1, hidden_dim=32, heads=4),
        example=_scene,
    ),
    Case(
        "causal_transformer_decoder_1",
        "CausalTransformerDecoder",
        "alex-matton/causal-transformer-decoder#1",
        "future-leak",
        options={"causal": True, **sizes(d_model=32, nhead=4)},
        example=_targets_and_memory,
    ),
    Case(
        "ditfastattn_7",
        "FastAttention",
        "thu-nics/DiTFastAttn#7",
        "window-missing",
        options=sizes(dim=32, heads=4, window_size=2),
    ),
    Case(
        "axlearn_842",
        "GroupedQueryAttention",
        "apple/axlearn#842",
        "group-order",
    ),
    Case(
        "aitm_1",
        "Attention",
        "adtalos/AITM-torch#1",
        "projection-unused",
        known_as=("keys-values-swapped", "weights-wrong"),
        options=sizes(dim=32),
        example=_two_stages,
    ),
    Case(
        "eduktm_39",
        "MultiHeadAttention",
        "bigdata-ustc/EduKTM#39",
        "future-leak",
        known_as=("mask-unused",),
        options=sizes(n_feat=32, n_heads=4),
        example=_exercises,
    ),
    Case(
        "attention_is_all_you_need_42",
        "MultiHeadAttention",
        "jadore801120/attention-is-all-you-need-pytorch#42",
        "scale-wrong",
        options=sizes(n_head=4, d_model=32, d_k=8, d_v=8),
    ),
    Case(
        "local_attention_5",
        "LocalAttention",
        "lucidrains/local-attention#5",
        "future-leak",
        known_as=("window-missing",),
        options={"causal": True, **sizes(window_size=4, causal=True, exact_windowsize=True)},
        example=_queries_keys_values,
    ),
    Case(
        "anygpt_10",
        "CausalSelfAttention",
        "any-LABS/anyGPT#10",
        "heads-mixed-merge",
        known_as=("heads-mixed-split", "future-leak"),
        options={"causal": True},
    ),
    Case(
        "flash_linear_attention_268",
        "LinearAttention",
        "fla-org/flash-linear-attention#268",
        "cache-mismatch",
        known_as=("rows-not-normalised",),
        options={"causal": True, **sizes(hidden_size=32, num_heads=4)},
    ),
    Case(
        "executorch_21749",
        "CachedAttention",
        "pytorch/executorch#21749",
        "causal-alignment",
        known_as=("cache-mismatch",),
        options={"causal": True, **sizes(dim=32, n_heads=4, n_kv_heads=2)},
    ),
    Case(
        "cellcap_35",
        "PerturbationResponse",
        "broadinstitute/CellCap#35",
        "scale-missing",
        known_as=("scale-wrong",),
        options=sizes(n_latent=16, n_drug=3, n_prog=6),
        example=_cells,
    ),
    Case(
        "alpa_608",
        "OPTSelfAttention",
        "alpa-projects/alpa#608",
        "future-leak",
        known_as=("cache-mismatch", "causal-alignment"),
        options={"causal": True, **sizes()},
        example=_tokens_and_empty_cache,
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
        "attention_mechanism_1",
        "cbam",
        "nikhilroxtomar/Attention-Mechanism-Implementation#1",
        "weights-wrong",
        options=sizes(channel=16),
        example=image,
    ),
    Case(
        "cntk_2083",
        "AttentionModel",
        "microsoft/CNTK#2083",
        "context-wrong",
        known_as=("keys-values-swapped",),
        options=sizes(attention_dim=24, enc_dim=32, dec_dim=32),
        example=_encoder_and_decoder_states,
    ),
)


@proves("dl4proteins_12")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, C, H, T), tokens()
    context = [
        F.scaled_dot_product_attention(h.query(x), h.key(x), h.value(x), is_causal=True)
        for h in m.heads
    ]
    return m(x), m.proj(torch.cat(context, -1))


@proves("ibl_mtm_13")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.NeuralAttention, 0, C, H), tokens()
    context = attended(m.query(x), m.key(x), m.value(x), CAUSAL)
    return m(x, CAUSAL.expand(B, T, T)), m.out_proj(context)


@proves("axolotl_3735")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.DiffusionAttention, C, H), tokens()
    context = attended(m.q_proj(x), m.k_proj(x), m.v_proj(x), REAL)
    return m(x, REAL.long()), m.o_proj(context)


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


@proves("diffusion_planner_156")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y, scene = made(module.DiT, 2, C, H), tokens(B, 4, C), tokens(B, C), tokens()
    missing = torch.zeros(B, 3, dtype=torch.bool)
    padded = F.pad(scene, (0, 0, 0, 2))
    return m(x, y, padded, missing), m(x, y, scene, missing)


@proves("causal_transformer_decoder_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.CausalTransformerDecoder, C, H)
    x, memory = tokens(T, B, C), tokens(5, B, C)
    return m(x, memory), torch.cat([m(x[: t + 1], memory)[-1:] for t in range(T)])


@proves("ditfastattn_7")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.FastAttention, C, H, 2), tokens()
    near = torch.ones(T, T, dtype=torch.bool).triu(-2).tril(2)
    return m(x), m.to_out(attended(m.to_q(x), m.to_k(x), m.to_v(x), near))


@proves("axlearn_842")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.GroupedQueryAttention), tokens(B, T, 32)
    q, k, v = heads(m.q_proj(x)), heads(m.k_proj(x), 2), heads(m.v_proj(x), 2)
    return m(x), m.o_proj(merged(F.scaled_dot_product_attention(q, k, v, enable_gqa=True)))


@proves("aitm_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C), tokens(B, 2, C)
    scores = torch.einsum("bsc,bsc->bs", m.q_layer(x), m.k_layer(x)) / C**0.5
    return m(x), torch.einsum("bs,bsc->bc", scores.softmax(-1), m.v_layer(x))


@proves("eduktm_39")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, v = made(module.MultiHeadAttention, C, n_heads=H), tokens(), tokens()
    mask = CAUSAL[None, None]
    parts = [m(x[:, :t], x[:, :t], v[:, :t], mask[:, :, :t, :t])[:, -1:] for t in range(1, T + 1)]
    return m(x, x, v, mask), torch.cat(parts, 1)


@proves("attention_is_all_you_need_42")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, H, C, 4, 4), tokens()
    hidden = ~REAL[:, None].expand(B, T, T)
    q, k, v = (torch.einsum("btc,hcd->bhtd", x, w) for w in (m.w_qs, m.w_ks, m.w_vs))
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=~hidden[:, None])
    return m(x, x, x, hidden)[0], m.layer_norm(m.proj(merged(context)) + x)


@proves("local_attention_5")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.LocalAttention, 4, causal=True, exact_windowsize=True)
    q, k, v = (tokens(B, 12, C) for _ in range(3))
    keep = torch.ones(12, 12, dtype=torch.bool).tril().triu(-4)
    return m(q, k, v), F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


@proves("anygpt_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.CausalSelfAttention), tokens(B, T, 32)
    q, k, v = m.c_attn(x).chunk(3, -1)
    return m(x), m.c_proj(attended(q, k, v, CAUSAL))


@proves("flash_linear_attention_268")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.LinearAttention, C, H), tokens()
    q, k, v = F.elu(heads(m.q_proj(x))) + 1, F.elu(heads(m.k_proj(x))) + 1, heads(m.v_proj(x))
    weights = (q @ k.transpose(-2, -1)).tril()
    expected = m.o_proj(merged(weights / weights.sum(-1, keepdim=True) @ v))
    return torch.stack([m(x)[0], in_steps(m, x)]), expected.expand(2, B, T, C)


@proves("executorch_21749")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.CachedAttention, C, H, 2, 8), tokens()
    q, k, v = heads(m.wq(x)), heads(m.wk(x), 2), heads(m.wv(x), 2)
    context = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    expected = m.wo(merged(context))
    return torch.stack([m(x)[0], in_steps(m, x)]), expected.expand(2, B, T, C)


@proves("cellcap_35")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, z, drugs = made(module.PerturbationResponse, C, 3, 7), tokens(5, C), [0, 2, 1, 1, 0]
    p = F.one_hot(torch.tensor(drugs), 3).double()
    expected = [
        cell + ((m.H_key[drug] @ cell / C**0.5).softmax(0) * F.softplus(m.H_pq[drug])) @ m.w_qk
        for cell, drug in zip(z, drugs, strict=True)
    ]
    return m(z, p), torch.stack(expected)


@proves("alpa_608")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.OPTSelfAttention, module.OPTConfig(C, H, 8)), tokens()
    q, k, v = m.qkv_combined(x).chunk(3, -1)
    expected = m.out_proj(attended(q, k, v, CAUSAL))
    steps = in_steps(lambda y, cache: m(y, cache or m.init_cache(B, torch.float64)), x)
    return torch.stack([m(x)[0], steps]), expected.expand(2, B, T, C)


@proves("jax_32300")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.LocalSelfAttention, C, H, (2, 1)), tokens()
    near = torch.ones(T, T, dtype=torch.bool).triu(-2).tril(1)
    expected = m.out(attended(m.query(x), m.key(x), m.value(x), near))
    masked = m(x, torch.ones(1, 1, 1, T, dtype=torch.bool))
    return torch.stack([m(x), masked]), expected.expand(2, B, T, C)


@proves("attention_mechanism_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.cbam, C, 4, 3), tokens(B, C, 4, 4)
    gate = (m.ca.mlp(x.mean((2, 3))) + m.ca.mlp(x.amax((2, 3)))).sigmoid()
    y = x * gate[..., None, None]
    pooled = torch.stack([y.mean(1), y.amax(1)], 1)
    return m(x), y * m.sa.conv(pooled).sigmoid()


@proves("cntk_2083")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, states, state = made(module.AttentionModel, C, C, C), tokens(), tokens(B, C)
    u = m.attn_proj_tanh((m.attn_proj_enc(states) + m.attn_proj_dec(state)[:, None]).tanh())
    weights = u[..., 0].masked_fill(~REAL, float("-inf")).softmax(-1)
    return m(states, state, REAL), torch.einsum("bt,btc->bc", weights, states)
