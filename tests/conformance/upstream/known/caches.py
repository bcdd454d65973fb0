"""Known bugs of decoding with a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from upstream.cases import Case
from upstream.proofs import B, C, H, T, in_steps, made, proves, tokens

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
