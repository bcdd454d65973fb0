"""Held-out bugs of round 10: language models, speech, translation and engines for inference."""

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


def _prompts() -> tuple[Any, ...]:
    """Return the tokens of two requests, one after another, and how many each has."""
    return torch.randn(13, 32), torch.tensor([8, 5])


def _sentences() -> tuple[Any, ...]:
    """Return the words of two sentences, one a column, and how many words each has."""
    return torch.randint(0, 50, (7, 2)), torch.tensor([7, 4])


def _translations() -> tuple[Any, ...]:
    """Return the outputs and the last state of an encoder, and the words of the translations."""
    return torch.randn(2, 7, 32), torch.randn(1, 2, 32), torch.randint(2, 50, (2, 5))


LANGUAGE: tuple[Case, ...] = (
    Case(
        "mlx_lm_93",
        "Model",
        "ml-explore/mlx-lm#93",
        "cache-mismatch",
        known_as=("length-dependent",),
        options={
            "causal": True,
            **sizes(n_embd=32, n_head=4, n_layer=2, n_positions=64, vocab_size=50),
        },
    ),
    Case(
        "nano_vllm_213",
        "Attention",
        "GeeeekExplorer/nano-vllm#213",
        "cache-garbage-read",
        known_as=("causal-alignment", "future-leak", "context-wrong", "weights-wrong"),
        options={
            "causal": True,
            **sizes(
                hidden_size=32, num_heads=4, num_kv_heads=2, block_size=4, max_num_batched_tokens=3
            ),
        },
        example=_prompts,
    ),
    Case(
        "candle_3586",
        "Model",
        "huggingface/candle#3586",
        "future-leak",
        known_as=("batch-mixed", "mask-broadcast"),
        options={
            "causal": True,
            **sizes(
                vocab_size=50,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=8,
            ),
        },
    ),
    Case(
        "dme_3",
        "SentenceEncoder",
        "facebookresearch/DME#3",
        "dropout-in-eval",
        options=sizes(vocab_size=50, emb_dims=(24, 16), proj_dim=32, rnn_dim=16, emb_dropout=0.2),
        example=_sentences,
    ),
    Case(
        "tvm_18630",
        "PagedKVCacheAttention",
        "apache/tvm#18630",
        "window-missing",
        known_as=("cache-mismatch",),
        options={
            "causal": True,
            "window": 4,
            **sizes(
                hidden_size=32, num_attention_heads=4, num_key_value_heads=2, sliding_window_size=4
            ),
        },
    ),
    Case(
        "maxtext_1370",
        "MLA",
        "AI-Hypercomputer/maxtext#1370",
        "scale-wrong",
        known_as=("weights-wrong",),
        options={
            "causal": True,
            **sizes(
                emb_dim=32,
                num_query_heads=4,
                kv_lora_rank=16,
                qk_nope_head_dim=8,
                qk_rope_head_dim=4,
                v_head_dim=8,
            ),
        },
    ),
    Case(
        "pytorch_tutorials_2121",
        "AttnDecoderRNN",
        "pytorch/tutorials#2121",
        "weights-wrong",
        known_as=("attention-ignored", "padding-leak", "length-dependent"),
        options=sizes(hidden_size=32, output_size=50),
        example=_translations,
    ),
)


@proves("mlx_lm_93")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.Model, C, H, 2, 8, 20)
    ids = torch.randint(0, 20, (B, T))
    whole, cache = m(ids), m.make_cache()
    steps = torch.cat([m(part, cache) for part in ids.split((3, 2, 1), 1)], 1)
    x = m.wte(ids) + m.wpe.weight[:T]
    for block in m.h:
        q, k, v = block.attn.c_attn(block.ln_1(x)).chunk(3, -1)
        x = x + block.attn.c_proj(attended(q, k, v, CAUSAL))
        x = x + block.mlp(block.ln_2(x))
    expected = m.ln_f(x) @ m.wte.weight.T
    return torch.stack([whole, steps]), expected.expand(2, *expected.shape)


@proves("nano_vllm_213")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.Attention, C, H, 2, block_size=4, max_num_batched_tokens=3)
    lengths, expected = torch.tensor([7, 1, 5]), []
    x = tokens(13, C)
    for request in x.split(lengths.tolist()):
        q, k, v = m.qkv_proj(request)[None].split((C, C // 2, C // 2), -1)
        q, k, v = heads(q), heads(k, 2), heads(v, 2)
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        expected.append(m.o_proj(merged(context))[0])
    return m(x, lengths), torch.cat(expected)


@proves("candle_3586")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.Model, 20, C, 24, 2, H, 2, 8)
    ids = torch.randint(0, 20, (B, T))
    whole = m(ids)
    steps = torch.cat([m(ids[:, :3]), m(ids[:, 3:5], 3), m(ids[:, 5:], 5)], 1)
    x = m.embed_tokens(ids)
    for layer in m.layers:
        a, y = layer.self_attn, layer.ln1(x)
        q = rotated(a.q_norm(heads(a.q_proj(y))))
        k, v = rotated(a.k_norm(heads(a.k_proj(y), 2))), heads(a.v_proj(y), 2)
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + a.o_proj(merged(context))
        x = x + layer.mlp(layer.ln2(x))
    expected = m.norm(x)
    return torch.stack([whole, steps]), expected.expand(2, *expected.shape)


@proves("dme_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    actual, expected = [], []
    for attnnet in ("no_dep_softmax", "dep_softmax"):
        m = made(module.SentenceEncoder, 20, (6, 4), C, 5, attnnet, 0.3)
        words, e = torch.randint(0, 20, (T, B)), m.embedder
        actual.append(m(words, REAL.sum(-1)))
        # One sentence at a time, without padding.
        for row, real in enumerate(REAL):
            tables = zip(e.embeddings, e.projectors, strict=True)
            y = torch.stack([p(t(words[real, row])) for t, p in tables], 1)
            scores = e.attn_1(y if attnnet == "no_dep_softmax" else e.attn_0(y)[0])
            x = (scores.softmax(1) * y).sum(1).relu()
            expected.append(m.rnn(x)[0].max(0)[0])
    return torch.cat(actual), torch.stack(expected)


@proves("tvm_18630")
def _(module: Any) -> tuple[Tensor, Tensor]:
    actual, expected = [], []
    for window in (2, 4, None):
        m, x = made(module.PagedKVCacheAttention, C, H, 2, window), tokens()
        q, k, v = m.qkv_proj(x).split((C, C // 2, C // 2), -1)
        q, k, v = rotated(heads(q)), rotated(heads(k, 2)), heads(v, 2)
        seen = CAUSAL if window is None else CAUSAL & ~CAUSAL.tril(-window)
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        actual += [m(x)[0], in_steps(m, x)]
        expected += 2 * [m.o_proj(merged(context))]
    return torch.stack(actual), torch.stack(expected)


@proves("maxtext_1370")
def _(module: Any) -> tuple[Tensor, Tensor]:
    actual, expected = [], []
    for rank in (0, 7):
        m, x = made(module.MLA, C, H, rank, 10, 6, 4, 5), tokens()
        q = m.wq_b(m.q_norm(m.wq_a(x))) if rank else m.query(x)
        latent, turning = m.wkv_a(x).split((10, 4), -1)
        kept, q = heads(q).split((6, 4), -1)
        q = torch.cat([kept, rotated(q, interleaved=True)], -1)
        k, v = heads(m.wkv_b(m.kv_norm(latent))).split((6, 5), -1)
        turned = rotated(turning[:, None], interleaved=True).expand(-1, H, -1, -1)
        context = F.scaled_dot_product_attention(q, torch.cat([k, turned], -1), v, is_causal=True)
        actual.append(m(x))
        expected.append(m.out(merged(context)))
    return torch.stack(actual), torch.stack(expected)


@proves("pytorch_tutorials_2121")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.AttnDecoderRNN, C, 20)
    states, hidden, words = tokens(), tokens(1, B, C), torch.randint(0, 20, (B, 5))
    # The context follows the contents of the states, wherever they are.
    order = torch.tensor([3, 5, 0, 2, 4, 1])
    found, _, weights = m(states, hidden, words)
    moved, _, moved_weights = m(states[:, order], hidden, words)
    return (
        torch.cat([moved.flatten(), moved_weights[..., :T].flatten()]),
        torch.cat([found.flatten(), weights[..., :T][..., order].flatten()]),
    )
