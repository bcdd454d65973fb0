"""Held-out bugs of round 9, from projects of all kinds."""

from __future__ import annotations

from types import SimpleNamespace
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


def _examinations() -> tuple[Any, ...]:
    """Return the X-rays of two patients, when they were taken, and how many there are."""
    times = torch.tensor([[-72.0, -30.0, -8.0, 0.0], [-40.0, -16.0, 0.0, 0.0]])
    return torch.randn(2, 4, 1, 16, 16), times, torch.tensor([4, 3])


def _latents() -> tuple[Any, ...]:
    """Return the latents of two videos, and the embeddings of their prompts."""
    return torch.randn(2, 4, 3, 4, 6), torch.randn(2, 5, 24)


def _questions() -> tuple[Any, ...]:
    """Return the words of two contexts and of two questions, the second ones padded with 1."""
    context, question = torch.randint(2, 50, (2, 9)), torch.randint(2, 50, (2, 4))
    context[1, 6:], question[1, 3:] = 1, 1
    return context, question


def _decoder(**changes: Any) -> SimpleNamespace:
    """Return a configuration of a layer of DeepSpeed."""
    config = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "heads": 4,
        "layer_norm_eps": 1e-5,
        "triangular_masking": True,
    }
    return SimpleNamespace(**{**config, **changes})


ROUND_9: tuple[Case, ...] = (
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
    Case(
        "covid_prognosis_16",
        "MIPModel",
        "facebookresearch/CovidPrognosis#16",
        "padding-leak",
        known_as=("mask-unused",),
        options=sizes(feature_dim=16, projection_dim=32, nhead=2, num_layers=1),
        example=_examinations,
    ),
    Case(
        "interaction_aware_attention_network_1",
        "IAAN",
        "30stomercury/Interaction-Aware-Attention-Network#1",
        "mask-fill-too-small",
        known_as=("mask-unused", "padding-leak"),
        options=sizes(in_dim=16, seq_dim=32, atten_size=8, hidden_dim=16),
    ),
    Case(
        "diffusers_12594",
        "WanTransformer3DModel",
        "huggingface/diffusers#12594",
        "rotary-mismatch",
        known_as=("weights-wrong",),
        options=sizes(
            num_attention_heads=2,
            attention_head_dim=16,
            in_channels=4,
            text_dim=24,
            ffn_dim=48,
            num_layers=1,
            rope_max_seq_len=16,
        ),
        example=_latents,
    ),
    Case(
        "xformers_183",
        "MultiHeadDispatch",
        "facebookresearch/xformers#183",
        "weights-wrong",
        options=sizes(dim_model=32, num_heads=4, dim_features=64),
    ),
    Case(
        "bidaf_26",
        "BiDAF",
        "galsang/BiDAF-pytorch#26",
        "crashes",
        known_as=("length-dependent", "batch-mixed"),
        options=sizes(word_vocab_size=50, word_dim=12, hidden_size=16),
        example=_questions,
    ),
    Case(
        "deepspeed_7428",
        "DeepSpeedTransformerInference",
        "deepspeedai/DeepSpeed#7428",
        "cache-mismatch",
        options={"causal": True, **sizes(config=_decoder())},
    ),
    Case(
        "dfdx_158",
        "MultiHeadAttention",
        "chelsea0x3b/dfdx#158",
        "heads-mixed-split",
        known_as=("heads-mixed-merge",),
        options=sizes(embed_dim=32, num_heads=4),
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


@proves("covid_prognosis_16")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, lens = made(module.MIPModel, 12, C, nhead=H), REAL.sum(-1)
    images, times = tokens(B, T, 1, 8, 8), -360 * torch.rand(B, T)
    # One patient at a time, without padding.
    alone = [
        m(row[None, :n], time[None, :n], n[None])
        for row, time, n in zip(images, times, lens, strict=True)
    ]
    return m(images, times, lens), torch.cat(alone)


@proves("interaction_aware_attention_network_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.IAAN, 5, C, 7, 9)
    lens = (REAL, REAL.flip(0), REAL.roll(1, 0))
    utterances = [tokens(B, T, 5) * real[..., None] for real in lens]
    expected = []
    # One dialogue at a time, without padding.
    for row in range(B):
        c, p, r = (y[row, real[row]][None] for y, real in zip(utterances, lens, strict=True))
        vectors = []
        for x, rnn, attention in (
            (p, m.up_encoder, m.up_attention),
            (r, m.ur_encoder, m.ur_attention),
        ):
            states = rnn(x)[0]
            scores = attention.w_omega(states).tanh() @ attention.u_omega
            vectors.append((scores.softmax(-1)[..., None] * states).sum(1))
        states, a = m.uc_encoder(c)[0], m.interaction
        scores = (states @ a.W_c + vectors[0] @ a.W_p + vectors[1] @ a.W_r + a.b).tanh() @ a.u
        current = (scores.softmax(-1)[..., None] * states).sum(1)
        hidden = m.layer_norm(m.dense(torch.cat([current, *vectors], 1)))
        expected.append(m.out(hidden.relu()))
    return m(*utterances), torch.cat(expected)


@proves("diffusers_12594")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.WanTransformer3DModel, (1, 2, 2), 2, 16, 4, 10, 24, 1, 8)
    video, text = tokens(2, 4, 3, 4, 6), tokens(2, 5, 10)
    places = torch.cartesian_prod(torch.arange(3), torch.arange(2), torch.arange(3))
    # 16 dimensions of a head: 8 turn with the frames, 4 with the rows and 4 with the columns.
    turns = [
        places[:, [axis]].double() / 10000.0 ** (torch.arange(0, dim, 2).double() / dim)
        for axis, dim in enumerate((8, 4, 4))
    ]
    angles = torch.cat(turns, -1)
    cos, sin = angles.cos().float().double(), angles.sin().float().double()

    def turned(y: Tensor) -> Tensor:
        y = heads(y, 2)
        first, second = y[..., 0::2], y[..., 1::2]
        return torch.stack([first * cos - second * sin, second * cos + first * sin], -1).flatten(-2)

    # The patches of a frame are 2 × 2 pixels.
    patches = video.unflatten(3, (2, 2)).unflatten(5, (3, 2)).permute(0, 2, 3, 5, 1, 4, 6)
    weight = m.patch_embedding.weight.flatten(1)
    x = F.linear(patches.flatten(4).flatten(1, 3), weight, m.patch_embedding.bias)
    words, block = m.text_embedder(text), m.blocks[0]
    a, y = block.attn1, block.norm1(x)
    q, k = turned(a.norm_q(a.to_q(y))), turned(a.norm_k(a.to_k(y)))
    context = F.scaled_dot_product_attention(q, k, heads(a.to_v(y), 2))
    x = x + a.to_out[0](merged(context))
    a, y = block.attn2, block.norm2(x)
    q, k, v = a.norm_q(a.to_q(y)), a.norm_k(a.to_k(words)), a.to_v(words)
    x = x + a.to_out[0](attended(q, k, v, count=2))
    x = m.proj_out(m.norm_out(x + block.ffn(block.norm3(x))))
    expected = x.view(2, 3, 2, 3, 2, 2, 4).permute(0, 6, 1, 2, 4, 3, 5).reshape(video.shape)
    return m(video, text), expected


@proves("xformers_183")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.MultiHeadDispatch, C, H, 24), tokens(), tokens(B, 9, C)
    q, k, v = heads(m.q_proj(x)), heads(m.k_proj(y)), heads(m.v_proj(y))
    drawn = m.attention.feature_map_query.features

    def kernel(z: Tensor) -> Tensor:
        return torch.exp((z / 4**0.25) @ drawn - z.square().sum(-1, keepdim=True) / 4)

    weights = kernel(q) @ kernel(k).mT
    context = weights / weights.sum(-1, keepdim=True) @ v
    return m(x, y), m.proj(merged(context))


@proves("bidaf_26")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, actual, expected = made(module.BiDAF, 50, 6, 4), [], []
    for contexts, questions in ((1, 1), (3, 1), (1, 2), (3, 3)):
        for size, pad in ((3, 2), (1, 0)):
            lengths = torch.full((size,), contexts)
            c_word = torch.randint(2, 50, (size, contexts + pad))
            q_word = torch.randint(2, 50, (size, questions + pad))
            c_word[:, contexts:], q_word[:, questions:] = 1, 1
            found = torch.stack(m(c_word, q_word), -1)
            # One context and its question at a time, without padding.
            for i in range(len(lengths)):
                c = m.highway_network(m.word_linear(m.word_emb(c_word[i, :contexts])))
                q = m.highway_network(m.word_linear(m.word_emb(q_word[i, :questions])))
                s = m.att_weight_c(c) + m.att_weight_q(q).mT
                s = s + m.att_weight_cq(c[:, None] * q[None]).squeeze(-1)
                seen = s.softmax(-1) @ q
                common = s.max(-1).values.softmax(-1) @ c
                g = torch.cat([c, seen, c * seen, c * common], -1)
                actual.append(found[i, :contexts])
                expected.append(torch.cat([m.p1_weight_g(g), m.p2_weight_g(g)], -1))
    return torch.cat(actual), torch.cat(expected)


@proves("deepspeed_7428")
def _(module: Any) -> tuple[Tensor, Tensor]:
    config = _decoder(hidden_size=C, intermediate_size=24, heads=H)
    m, x = made(module.DeepSpeedTransformerInference, config), tokens()
    a = m.attention
    normed = F.layer_norm(x, (C,), a.norm_w, a.norm_b)
    q, k, v = (heads(y) for y in (normed @ a.attn_qkvw + a.attn_qkvb).chunk(3, -1))
    context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    y = x + merged(context) @ a.attn_ow + a.attn_ob
    expected = y + m.mlp(y)
    steps = [
        in_steps(lambda x, past, name=name: m(x, use_cache=True, **{name: past}), x)
        for name in ("layer_past", "past_key_value")
    ]
    return torch.stack([m(x), *steps]), expected.expand(3, B, T, C)


@proves("dfdx_158")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y, z = made(module.MultiHeadAttention, C, H, 8, 12), tokens(), tokens(), tokens()
    found = [m(x), m((x, y, z)), m((x[0], y[0], z[0])).expand(B, T, C)]
    expected = [m.w_o(attended(m.w_q(x), m.w_k(k), m.w_v(v))) for k, v in ((x, x), (y, z), (y, z))]
    expected[2] = expected[2][:1].expand(B, T, C)
    return torch.stack(found), torch.stack(expected)
