"""The held-out bugs of public projects, with proofs: they were re-created without running the check or reading it.

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
    in_steps,
    made,
    merged,
    proves,
    rotated,
    tokens,
)


def _series() -> tuple[Any, ...]:
    """Return two series of 3 channels and 32 steps, the second one padded at the left."""
    observed = torch.arange(32) >= torch.tensor([0, 13])[:, None]
    return torch.randn(2, 3, 32) * observed[:, None], observed.long()


def _sentences() -> tuple[Any, ...]:
    """Return the words of two sentences, the second one padded with 0."""
    words = torch.arange(9) < torch.tensor([9, 6])[:, None]
    return (torch.randint(1, 50, (2, 9)) * words,)


def _histories() -> tuple[Any, ...]:
    """Return the items that two users have seen, the second history padded with 0 at the left."""
    seen = torch.arange(8) >= torch.tensor([0, 3])[:, None]
    return (torch.randint(1, 51, (2, 8)) * seen,)


def _mixtures() -> tuple[Any, ...]:
    """Return the features of two mixtures of speakers, channels first."""
    return (torch.randn(2, 32, 12),)


HELD_OUT: tuple[Case, ...] = (
    Case(
        "candle_899",
        "T5Attention",
        "huggingface/candle#899",
        "cache-mismatch",
        known_as=("relative-shift-wrong",),
        options={"causal": True, **sizes(d_model=32, d_kv=8, num_heads=4)},
    ),
    Case(
        "sktime_10685",
        "MomentFMForecastNet",
        "sktime/sktime#10685",
        "mask-unused",
        known_as=("padding-leak",),
        options=sizes(seq_len=32, forecast_horizon=4, d_model=32, n_heads=4),
        example=_series,
    ),
    Case(
        "whisper_cpp_3941",
        "MultiHeadAttention",
        "ggml-org/whisper.cpp#3941",
        "cache-garbage-read",
        known_as=("stale-state", "rows-not-normalised"),
        options=sizes(n_state=32, n_head=4),
    ),
    Case(
        "ollama_13893",
        "Attention",
        "ollama/ollama#13893",
        "scale-wrong",
        options={
            "causal": True,
            **sizes(
                hidden_size=32,
                num_heads=4,
                q_lora_rank=24,
                kv_lora_rank=16,
                qk_nope_head_dim=8,
                qk_rope_head_dim=4,
                v_head_dim=8,
            ),
        },
    ),
    Case(
        "transformer_69",
        "Encoder",
        "Kyubyong/transformer#69",
        "padding-leak",
        known_as=("mask-unused", "length-dependent"),
        options=sizes(vocab_size=50, hidden_units=32, num_heads=4, num_blocks=2),
        example=_sentences,
    ),
    Case(
        "nsa_release_3",
        "NativeSparseAttention",
        "tilde-research/nsa-release#3",
        "mask-inverted",
        known_as=("future-leak",),
        options={
            "causal": True,
            **sizes(hidden_size=32, n_heads=4, n_kv_heads=2, block_size=2, window_size=4),
        },
    ),
    Case(
        "jax_js_180",
        "Attention",
        "ekzhang/jax-js#180",
        "group-order",
        options={"causal": True, **sizes(embed_dim=32, num_heads=4, num_kv_heads=2)},
    ),
    Case(
        "sasrec_36",
        "SASRec",
        "pmixer/SASRec.pytorch#36",
        "padding-leak",
        known_as=("mask-unused", "length-dependent"),
        options={"causal": True, **sizes(item_num=50, hidden_units=32, num_heads=2)},
        example=_histories,
    ),
    Case(
        "tdanet_3",
        "GlobalAttention",
        "JusperLee/TDANet#3",
        "batch-mixed",
        options=sizes(in_chan=32, n_head=4),
        example=_mixtures,
    ),
)


@proves("candle_899")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.T5Attention, C, 4, H), tokens()
    back = (torch.arange(T)[:, None] - torch.arange(T)).clamp(min=0)
    bias = m.relative_attention_bias.weight[back].permute(2, 0, 1).masked_fill(~CAUSAL, -torch.inf)
    q, k, v = heads(m.q(x)), heads(m.k(x)), heads(m.v(x))
    expected = m.o(merged((q @ k.mT + bias).softmax(-1) @ v))
    return torch.stack([m(x)[0], in_steps(m, x)]), expected.expand(2, B, T, C)


@proves("sktime_10685")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.MomentFMForecastNet, 24, 5, 4, C, H)
    starts, expected = [0, 9, 12], []
    series, observed = tokens(B, 2, 24), torch.arange(24) >= torch.tensor(starts)[:, None]
    # One series at a time: the patches that hold values, and nothing else.
    for row, start in zip(series, starts, strict=True):
        for y in row[:, start:]:
            mean, stdev = y.mean(), (y.var(correction=0) + 1e-5).sqrt()
            patches = F.pad((y - mean) / stdev, (start % 4, 0)).view(1, -1, 4)
            x = m.model.value_embedding(patches) + m.model.position_embedding[start // 4 :]
            for block in m.model.blocks:
                q, k, v = block.qkv(block.norm1(x)).chunk(3, -1)
                x = x + block.o(attended(q, k, v))
                x = x + block.ff(block.norm2(x))
            features = F.pad(m.model.norm(x), (0, 0, start // 4, 0)).flatten()
            expected.append(m.model.head(features) * stdev + mean)
    return m(series * observed[:, None], observed.long()), torch.stack(expected).view(B, 2, 5)


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


@proves("ollama_13893")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H, 12, 10, 4, 2, 5), tokens()
    q_pass, q_rot = heads(m.q_b(m.q_a_norm(m.q_a(x)))).split([4, 2], -1)
    latents, k_rot = m.kv_a(x)[:, None].split([10, 2], -1)
    latents = m.kv_a_norm(latents)
    # Nothing is absorbed: each head has keys and values of its own.
    k_rot = rotated(k_rot, interleaved=True).expand(B, H, T, 2)
    q = torch.cat([q_pass, rotated(q_rot, interleaved=True)], -1)
    k = torch.cat([latents @ m.k_b.mT, k_rot], -1)
    context = F.scaled_dot_product_attention(q, k, latents @ m.v_b.mT, is_causal=True)
    return torch.stack([m(x)[0], in_steps(m, x)]), m.output(merged(context)).expand(2, B, T, C)


@proves("transformer_69")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.Encoder, 20, C, H, num_blocks=2)
    ids, actual, expected = torch.randint(1, 20, (B, T)) * REAL, [], []
    place = torch.arange(T)[:, None] / 10000.0 ** (torch.arange(0, C, 2) / C)
    places = torch.stack([place.sin(), place.cos()], -1).flatten(1).double()
    memory = m(ids)
    # One sentence at a time, without its padding.
    for row, found in zip(ids, memory, strict=True):
        words = row[row > 0]
        x = (m.lookup(words) * C**0.5 + places[: len(words)])[None]
        for a, f in zip(m.attentions, m.feedforwards, strict=True):
            x = a.normalize(attended(a.q_dense(x), a.k_dense(x), a.v_dense(x)) + x)
            x = f.normalize(f.outer(F.relu(f.inner(x))) + x)
        actual.append(found[: len(words)])
        expected.append(x[0])
    return torch.cat(actual), torch.cat(expected)


@proves("nsa_release_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.NativeSparseAttention, C, H, 2, 2, 3), tokens()
    q, k, v = heads(m.q_proj(x)), heads(m.k_proj(x), 2), heads(m.v_proj(x), 2)
    gates, rows = m.gate_proj(x).sigmoid().view(B, T, 2, H, 1), []

    def block(c: Any, y: Tensor, j: int) -> Tensor:
        return c.proj((y[:, :, 2 * j : 2 * j + 2] + c.pos_emb).flatten(2))

    # One query at a time: the blocks that end before it or with it, and its window.
    for t in range(T):
        near = F.scaled_dot_product_attention(
            q[:, :, [t]], *(y[:, :, max(0, t - 2) : t + 1] for y in (k, v)), enable_gqa=True
        )
        far, full = torch.zeros_like(near), range((t + 1) // 2)
        if full:
            keys = torch.stack([block(m.compress_k, k, j) for j in full], 2)
            values = torch.stack([block(m.compress_v, v, j) for j in full], 2)
            far = F.scaled_dot_product_attention(q[:, :, [t]], keys, values, enable_gqa=True)
        rows.append(gates[:, t, 0] * far[:, :, 0] + gates[:, t, 1] * near[:, :, 0])
    return m(x), m.o_proj(torch.stack(rows, 1).flatten(2))


@proves("jax_js_180")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H, 2), tokens()
    q, k, v = heads(m.q_proj(x)), heads(m.k_proj(x), 2), heads(m.v_proj(x), 2)
    keep = CAUSAL & REAL[:, None, None]
    context = F.scaled_dot_product_attention(q, k, v, keep, enable_gqa=True)
    return m(x, REAL.sum(-1)), m.out_proj(merged(context))


@proves("sasrec_36")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.SASRec, 20, 8, C, num_heads=H)
    for layer in m.attention_layers:
        torch.nn.init.normal_(layer.in_proj_bias)
    ids, actual, expected = torch.randint(1, 21, (B, T)) * REAL.flip(-1), [], []
    found = m(ids)
    # One user at a time, without padding.
    for row, features in zip(ids, found, strict=True):
        items = row[row > 0]
        x = m.item_emb(items) * C**0.5 + m.pos_emb(torch.arange(1, len(items) + 1))
        x = x[None]
        for i, a in enumerate(m.attention_layers):
            query = m.attention_layernorms[i](x)
            wq, wk, wv = a.in_proj_weight.chunk(3)
            bq, bk, bv = a.in_proj_bias.chunk(3)
            q, k, v = F.linear(query, wq, bq), F.linear(x, wk, bk), F.linear(x, wv, bv)
            causal = CAUSAL[: len(items), : len(items)]
            context = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), causal)
            x = m.forward_layernorms[i](query + a.out_proj(merged(context)))
            f = m.forward_layers[i]
            inner = F.relu(F.linear(x, f.conv1.weight[..., 0], f.conv1.bias))
            x = x + F.linear(inner, f.conv2.weight[..., 0], f.conv2.bias)
        actual.append(features[-len(items) :])
        expected.append(m.last_layernorm(x)[0])
    return torch.cat(actual), torch.cat(expected)


@proves("tdanet_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.GlobalAttention, C, H), tokens(B, C, T)
    a = m.attn
    place = torch.arange(T)[:, None] / 10000.0 ** (torch.arange(0, C, 2) / C)
    y = F.layer_norm(x.mT, (C,), a.norm.gamma, a.norm.beta, eps=1e-8)
    y = y + torch.stack([place.sin(), place.cos()], -1).flatten(1)
    q, k, v = F.linear(y, a.attn.in_proj_weight, a.attn.in_proj_bias).chunk(3, -1)
    seen = x + a.attn_in_norm(y + a.attn.out_proj(attended(q, k, v))).mT
    return m(x), seen + m.mlp(seen)
