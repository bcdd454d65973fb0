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
    made,
    merged,
    proves,
    tokens,
)


def _radar_and_optical() -> tuple[Any, ...]:
    """Return two radar images and the optical images of the same places."""
    return torch.randn(2, 2, 16, 16), torch.randn(2, 12, 16, 16)


def _requests() -> tuple[Any, ...]:
    """Return the positions of the tokens of two packed requests, the tokens, and their numbers."""
    return (
        torch.tensor([0, 1, 2, 3, 4, 0, 1, 2]),
        torch.randn(8, 32, dtype=torch.bfloat16),
        torch.tensor([5, 3]),
    )


def _prompts() -> tuple[Any, ...]:
    """Return two prompts and their mask, the second one padded at the left."""
    seen = torch.arange(8) >= torch.tensor([0, 3])[:, None]
    return torch.randint(1, 50, (2, 8)) * seen, seen.long()


def _codes() -> tuple[Any, ...]:
    """Return the codebook to predict, and the codes of the frames of two clips."""
    return 2, torch.randint(0, 50, (2, 9, 4))


HELD_OUT: tuple[Case, ...] = (
    Case(
        "keras_hub_2977",
        "FalconTransformerDecoder",
        "keras-team/keras-hub#2977",
        "cache-mismatch",
        known_as=("crashes",),
        options={
            "causal": True,
            **sizes(hidden_dim=32, num_attention_heads=4, intermediate_dim=48, num_kv_heads=2),
        },
    ),
    Case(
        "torchgeo_3232",
        "CROMA",
        "torchgeo/torchgeo#3232",
        "table-not-a-buffer",
        known_as=("mask-not-a-buffer",),
        options=sizes(encoder_dim=32, encoder_depth=2, num_heads=4, patch_size=4, image_size=16),
        example=_radar_and_optical,
    ),
    Case(
        "tinygrad_2267",
        "Transformer",
        "tinygrad/tinygrad#2267",
        "crashes",
        options={
            "causal": True,
            **sizes(dim=32, hidden_dim=48, n_heads=4, n_layers=2, vocab_size=50, n_kv_heads=2),
        },
    ),
    Case(
        "sglang_jax_1473",
        "LlamaAttention",
        "sgl-project/sglang-jax#1473",
        "rotary-precision",
        options={"causal": True, **sizes(hidden_size=32, num_heads=4, num_kv_heads=2)},
        example=_requests,
    ),
    Case(
        "transformers_29109",
        "LlamaModel",
        "huggingface/transformers#29109",
        "batch-mixed",
        known_as=("left-padding-positions", "rotary-mismatch", "padding-leak"),
        options={
            "causal": True,
            **sizes(
                vocab_size=50,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
            ),
        },
        example=_prompts,
    ),
    Case(
        "lightning_attention_28",
        "NormLinearAttention",
        "OpenNLPLab/lightning-attention#28",
        "length-dependent",
        known_as=("output-not-finite",),
        options={
            "causal": True,
            **sizes(embed_dim=32, hidden_dim=32, num_heads=4, block=4),
        },
    ),
    Case(
        "aprender_2203",
        "MultiHeadAttention",
        "paiml/aprender#2203",
        "gradient-wrong",
        options=sizes(embed_dim=32, num_heads=4),
    ),
    Case(
        "bark_662",
        "FineGPT",
        "suno-ai/bark#662",
        "dropout-in-eval",
        options=sizes(
            n_layer=2,
            n_head=4,
            n_embd=32,
            block_size=16,
            input_vocab_size=50,
            output_vocab_size=50,
            n_codes_total=4,
            dropout=0.1,
        ),
        example=_codes,
    ),
)


@proves("keras_hub_2977")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.FalconTransformerDecoder, C, H, 24, 2), tokens()
    cache, actual = x.new_zeros(B, 2, T, 2, C // H), []
    for t in range(T):
        y, cache = m(x[:, t : t + 1], attention_cache=cache, attention_cache_update_index=t)
        actual.append(y)
    a, y = m.attention_layer, m.input_layernorm(x)
    q, k, v = heads(a.query_dense(y)), heads(a.key_dense(y), 2), heads(a.value_dense(y), 2)
    back = (torch.arange(T)[:, None] - torch.arange(T)).double()
    slopes = 2.0 ** -torch.tensor([2, 4, 6, 8], dtype=torch.float64)
    bias = (-slopes[:, None, None] * back).masked_fill(~CAUSAL, -torch.inf)
    context = F.scaled_dot_product_attention(q, k, v, bias[None], enable_gqa=True)
    z = x + a.output_dense(merged(context))
    expected = z + m.dense_4h_to_h(F.gelu(m.dense_h_to_4h(m.post_attention_layernorm(z))))
    return torch.stack([m(x), torch.cat(actual, 1)]), expected.expand(2, B, T, C)


@proves("torchgeo_3232")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.CROMA, ("optical",), C, 2, H, 4, 8)
    images = tokens(B, 12, 8, 8)
    actual = m(x_optical=images)["optical_encodings"]
    place = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    slopes = 2.0 ** -torch.tensor([2.0, 4.0, 6.0, 8.0])
    bias = -(slopes[:, None, None] * (place[:, None] - place).square().sum(-1).sqrt()).double()
    encoder = m.s2_encoder
    patches = [images[:, :, i : i + 4, j : j + 4] for i in (0, 4) for j in (0, 4)]
    x = encoder.linear_input(torch.stack([p.permute(0, 2, 3, 1).flatten(1) for p in patches], 1))
    for layer in encoder.transformer.layers:
        a = layer["attn"]
        y = a.input_norm(x)
        k, v = a.to_kv(y).chunk(2, -1)
        context = F.scaled_dot_product_attention(
            heads(a.to_q(y)), heads(k), heads(v), bias.expand(B, H, 4, 4)
        )
        x = x + a.to_out(merged(context))
        x = x + layer["ffn"](x)
    expected = encoder.transformer.norm_out(x)
    moved = torch.tensor([float(m.to("meta").attn_bias.is_meta)])
    return torch.cat([actual.flatten(), moved]), torch.cat([expected.flatten(), torch.ones(1)])


def _turned(x: Tensor) -> Tensor:
    """Rotate pairs of neighbours, 4 dimensions, by angles with cosines and sines in float32."""
    angles = torch.outer(torch.arange(x.shape[-2]), torch.tensor([1.0, 0.01]))
    turns = torch.complex(angles.cos().double(), angles.sin().double())
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (2, 2))) * turns).flatten(-2)


def _pairs(x: Tensor) -> Tensor:
    """Put the second half of the dimensions beside the first one."""
    return x.unflatten(-1, (2, -1)).mT.contiguous().flatten(-2)


def _halves(x: Tensor) -> Tensor:
    """Undo _pairs()."""
    return x.unflatten(-1, (-1, 2)).mT.flatten(-2)


@proves("tinygrad_2267")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.Transformer, C, 24, H, 2, 20, n_kv_heads=2)
    ids = torch.randint(0, 20, (B, T))
    whole = m(ids)
    steps = torch.cat([m(ids[:, :3]), m(ids[:, 3:5], 3), m(ids[:, 5:], 5)], 1)
    x = m.tok_embeddings(ids)
    for layer in m.layers:
        a, y = layer.attention, layer.attention_norm(x)
        q, k = _turned(heads(a.wq(y))), _turned(heads(a.wk(y), 2))
        v = heads(a.wv(y), 2)
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + a.wo(merged(context))
        x = x + layer.feed_forward(layer.ffn_norm(x))
    expected = m.output(m.norm(x))
    return torch.stack([whole, steps]), expected.expand(2, *expected.shape)


@proves("sglang_jax_1473")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, n = module.LlamaAttention(32, 2, 2), 600
    # Vectors of ones and zeros: rotated, they are the cosines and the sines.
    x = torch.cat([torch.ones(n, 2, 8), torch.zeros(n, 2, 8)], -1).flatten(1).bfloat16()
    q, k = m.rotary_emb(torch.arange(n), x, x)
    angles = torch.outer(torch.arange(float(n)), torch.as_tensor(m.rotary_emb._inv_freq_np))
    expected = torch.cat([angles.cos(), angles.sin()], -1).bfloat16().float()
    return torch.stack([q, k]).float(), expected.repeat(2, 1, 2)


@proves("transformers_29109")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.LlamaModel, 20, C, 24, 2, H, 2)
    seen = REAL.flip(-1)
    ids, actual, expected = torch.randint(0, 20, (B, T)), [], []
    found, _ = m(ids, seen.long())
    # One prompt at a time, without padding.
    for row, real, features in zip(ids, seen, found, strict=True):
        x = m.embed_tokens(row[real])[None]
        for layer in m.layers:
            a, y = layer.self_attn, layer.input_layernorm(x)
            q, k = heads(a.q_proj(y)), heads(a.k_proj(y), 2)
            q, k = (_halves(_turned(_pairs(z))) for z in (q, k))
            v = heads(a.v_proj(y), 2)
            context = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + a.o_proj(merged(context))
            y = layer.post_attention_layernorm(x)
            x = x + layer.down_proj(F.silu(layer.gate_proj(y)) * layer.up_proj(y))
        actual.append(features[real])
        expected.append(m.norm(x)[0])
    return torch.cat(actual), torch.cat(expected)


@proves("lightning_attention_28")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.NormLinearAttention, C, C, H, block=4), tokens()
    q, k, v, u = m.qkvu_proj(x).chunk(4, -1)
    back = (torch.arange(T)[:, None] - torch.arange(T)).double()
    decay = (-m.slope_rate[:, None, None] * back).exp() * CAUSAL
    weights = F.silu(heads(q)) @ F.silu(heads(k)).mT * decay
    context = merged(weights @ heads(v))
    size = context.square().mean(-1, keepdim=True).sqrt() + 1e-6
    return m(x), m.out_proj(u * context / size)


@proves("aprender_2203")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, towards = made(module.MultiHeadAttention, C, H), tokens().requires_grad_(), tokens()
    expected = m.out_proj(attended(m.q_proj(x), m.k_proj(x), m.v_proj(x)))
    of = [x, *m.parameters()]
    found, right = (torch.autograd.grad((y * towards).sum(), of) for y in (m(x)[0], expected))
    return torch.cat([g.flatten() for g in found]), torch.cat([g.flatten() for g in right])


@proves("bark_662")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.FineGPT, 2, H, C, 8, 20, 20, 4, dropout=0.3)
    codes, t = torch.randint(0, 20, (B, T, 4)), m.transformer
    x = sum(t.wtes[i](codes[..., i]) for i in range(3)) + t.wpe.weight[:T]
    for block in t.h:
        x = x + block.attn.c_proj(attended(*block.attn.c_attn(block.ln_1(x)).chunk(3, -1)))
        x = x + block.mlp(block.ln_2(x))
    return m(2, codes), m.lm_heads[1](t.ln_f(x))
