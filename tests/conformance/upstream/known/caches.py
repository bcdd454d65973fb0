"""Known bugs of decoding with a cache."""

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
    in_steps,
    made,
    merged,
    proves,
    rotated,
    tokens,
)


def _episodes() -> tuple[Any, ...]:
    """Return 6 steps of two episodes, steps first."""
    return (torch.randn(6, 2, 16),)


def _gemma(m: Any, x: Tensor) -> Tensor:
    q, k, v = heads(m.q_einsum(x)), heads(m.k_einsum(x), 2), heads(m.v_einsum(x), 2)
    q, k, v = (t / (t.square().mean(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k, v))
    q, k = rotated(q * (1 + m.query_norm.scale)), rotated(k * (1 + m.key_norm.scale))
    context = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return m.attn_vec_einsum(merged(context))


CASES = (
    Case(
        "transformer_lens_777",
        "Attention",
        "TransformerLensOrg/TransformerLens#777",
        "cache-mismatch",
        options={"causal": True},
    ),
    Case(
        "ofa_254",
        "DecoderSelfAttention",
        "OFA-Sys/OFA#254",
        "cache-mismatch",
        known_as=("relative-shift-wrong", "crashes"),
        options={"causal": True},
    ),
    Case(
        "x_transformers_187",
        "Attention",
        "lucidrains/x-transformers#187",
        "causal-alignment",
        known_as=("cache-mismatch",),
        options={"causal": True},
    ),
    Case(
        "lag_llama_81",
        "CausalSelfAttention",
        "time-series-foundation-models/lag-llama#81",
        "causal-alignment",
        known_as=("cache-mismatch",),
        options={"causal": True},
    ),
    Case(
        "tiny_llm_17",
        "MultiHeadAttention",
        "Mikyx-1/TinyLLM#17",
        "causal-alignment",
        known_as=("cache-mismatch", "future-leak"),
        options={"causal": True},
    ),
    Case(
        "rotary_embedding_torch_11",
        "Attention",
        "lucidrains/rotary-embedding-torch#11",
        "stale-state",
        known_as=("rotary-offset", "cache-mismatch"),
        options={"causal": True},
    ),
    Case(
        "infinigen_5",
        "SelfAttention",
        "snu-comparch/InfiniGen#5",
        "cache-mismatch",
        options={"causal": True},
    ),
    Case(
        "transformers_rl_7",
        "StableTransformerXL",
        "dhruvramani/Transformers-RL#7",
        "cache-mismatch",
        options={"causal": True, **sizes(d_input=16, n_heads=2, d_head_inner=8)},
        example=_episodes,
    ),
    Case(
        "lalamo_200",
        "Attention",
        "trymirai/lalamo#200",
        "cache-mismatch",
        known_as=("causal-alignment", "window-missing", "window-off-by-one"),
        options={
            "causal": True,
            "window": 3,
            **sizes(model_dim=32, num_heads=4, num_groups=2, head_dim=8, sliding_window_size=3),
        },
    ),
    Case(
        "moeut_6",
        "SwitchHead",
        "RobertCsordas/moeut#6",
        "cache-mismatch",
        known_as=("rotary-offset", "rotary-mismatch"),
        options={"causal": True},
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
        "hyprstream_1521",
        "LlamaAttention",
        "hyprstream/hyprstream#1521",
        "causal-alignment",
        known_as=("cache-mismatch",),
        options={"causal": True, **sizes(hidden_size=32, num_heads=4, num_kv_heads=2)},
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
        "gemma_392",
        "Attention",
        "google-deepmind/gemma#392",
        "cache-mismatch",
        known_as=("rotary-mismatch", "rotary-offset"),
        options={
            "causal": True,
            **sizes(num_heads=4, num_kv_heads=2, features=32, head_dim=8),
        },
    ),
    Case(
        "mlxcel_679",
        "Attention",
        "lablup/mlxcel#679",
        "cache-mismatch",
        known_as=("nan-on-masked-rows", "output-not-finite"),
        options={
            "causal": True,
            "window": 4,
            **sizes(hidden_size=32, n_heads=4, n_kv_heads=2, sliding_window=4),
        },
    ),
    Case(
        "mlx_lm_1673",
        "Attention",
        "ml-explore/mlx-lm#1673",
        "cache-mismatch",
        known_as=("cache-garbage-read",),
        options={
            "causal": True,
            **sizes(hidden_size=32, n_heads=4, n_kv_heads=2, attention_chunk_size=4),
        },
    ),
    Case(
        "candle_899",
        "T5Attention",
        "huggingface/candle#899",
        "cache-mismatch",
        known_as=("relative-shift-wrong",),
        options={"causal": True, **sizes(d_model=32, d_kv=8, num_heads=4)},
    ),
    Case(
        "whisper_cpp_3941",
        "MultiHeadAttention",
        "ggml-org/whisper.cpp#3941",
        "cache-garbage-read",
        known_as=("stale-state", "rows-not-normalised"),
        options=sizes(n_state=32, n_head=4),
    ),
)


@proves("transformer_lens_777")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H, 4), tokens()
    return in_steps(m, x), m(x)[0]


@proves("ofa_254")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.DecoderSelfAttention, C, H), tokens()
    first, cache = m(x[:, :5])
    return torch.cat([first, m(x[:, 5:], cache)[0]], 1), m(x)[0]


@proves("x_transformers_187")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C), tokens()
    return in_steps(m, x), m(x)[0]


@proves("lag_llama_81")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.CausalSelfAttention, module.LTSMConfig(n_embd_per_head=4)), tokens()
    steps = [m(part, use_kv_cache=True) for part in x.split([3, 1, 1, 1], dim=1)]
    return torch.cat(steps, 1), m(x, use_kv_cache=False)


@proves("tiny_llm_17")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, cache = made(module.MultiHeadAttention, C, H), tokens(), module.KVCache()
    return torch.cat([m(part, cache) for part in x.split([4, 1, 1], dim=1)], 1), m(x)


@proves("rotary_embedding_torch_11")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C), tokens()
    rows, cache = [], None
    for row in x.unbind(1):
        out, cache = m(row[:, None], cache)
        rows.append(out)
    return torch.cat(rows, 1), m(x)[0]


@proves("infinigen_5")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SelfAttention, C, H), tokens()
    with torch.no_grad():
        cache = m.init_cache(B, T)
        starts, parts = (0, 4, 5), x.split([4, 1, 1], dim=1)
        steps = [m(part, cache, start) for start, part in zip(starts, parts, strict=True)]
        return torch.cat(steps, 1), m(x)


@proves("transformers_rl_7")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.StableTransformerXL, C, 2, 5, n_layers=2), tokens(T, B, C)
    first, memory = m(x[:2])
    second, memory = m(x[2:5], memory)
    return torch.cat([first, second, m(x[5:], memory)[0]]), m(x)[0]


@proves("lalamo_200")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H, 2, 4, sliding_window_size=3), tokens()
    return in_steps(m, x), m(x)[0]


@proves("moeut_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SwitchHead, C, H), tokens()
    return in_steps(m, x), m(x)[0]


@proves("omlx_2363")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, cache = made(module.Attention, 24, H, 2), tokens(B, T, 24), module.KVCache()
    return torch.cat([m(part, cache) for part in x.split([3, 2, 1], dim=1)], 1), m(x)


@proves("hyprstream_1521")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.LlamaAttention, C, H, 2), tokens()
    return in_steps(m, x), m(x)[0]


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


@proves("gemma_392")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, H, 2, C, C // H), tokens()
    actual = torch.stack([m(x)[0], in_steps(m, x)])
    return actual, _gemma(m, x).expand_as(actual)


@proves("mlxcel_679")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H, 2, 3), tokens()
    q, k, v = rotated(heads(m.q_proj(x))), rotated(heads(m.k_proj(x), 2)), heads(m.v_proj(x), 2)
    keep = CAUSAL.triu(-2)
    expected = m.o_proj(merged(F.scaled_dot_product_attention(q, k, v, keep, enable_gqa=True)))
    actual = torch.stack([m(x)[0], in_steps(m, x)])
    return actual, expected.expand_as(actual)


@proves("mlx_lm_1673")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H, 2, 4), tokens()
    q, k = (rotated(t, interleaved=True) for t in (heads(m.q_proj(x)), heads(m.k_proj(x), 2)))
    chunk = torch.arange(T) // 4
    keep = CAUSAL & (chunk[:, None] == chunk)
    context = F.scaled_dot_product_attention(q, k, heads(m.v_proj(x), 2), keep, enable_gqa=True)
    alone, cache = [], None
    for t in range(T):
        part, cache = m(x[:, t : t + 1], cache)
        alone.append(part)
    actual = torch.stack([m(x)[0], in_steps(m, x), torch.cat(alone, 1)])
    return actual, m.o_proj(merged(context)).expand_as(actual)


@proves("candle_899")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.T5Attention, C, 4, H), tokens()
    back = (torch.arange(T)[:, None] - torch.arange(T)).clamp(min=0)
    bias = m.relative_attention_bias.weight[back].permute(2, 0, 1).masked_fill(~CAUSAL, -torch.inf)
    q, k, v = heads(m.q(x)), heads(m.k(x)), heads(m.v(x))
    expected = m.o(merged((q @ k.mT + bias).softmax(-1) @ v))
    return torch.stack([m(x)[0], in_steps(m, x)]), expected.expand(2, B, T, C)


@proves("whisper_cpp_3941")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, longer, audio = (
        made(module.MultiHeadAttention, C, H),
        *(tokens(B, n, C) for n in (T, 9, 4)),
    )
    calls = [(x, longer), (x, audio), (x, None)]
    actual = [m(query, source) for query, source in calls]
    expected = []
    for query, source in calls:
        y = query if source is None else source
        expected.append(m.out(attended(m.query(query), m.key(y), m.value(y))))
    return torch.stack(actual), torch.stack(expected)
