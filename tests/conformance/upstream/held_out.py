"""The held-out bugs of public projects, with proofs: they were re-created without running the check or reading it.

They guide no change of it. Once a bug guides a change, it is moved to the known ones.
"""

from __future__ import annotations

import math
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


def _graphs() -> tuple[Any, ...]:
    """Return the nodes of two graphs, and the graph of each node."""
    return torch.randn(9, 16), torch.tensor([0] * 6 + [1] * 3)


def _molecules() -> tuple[Any, ...]:
    """Return the atoms of two molecules, atoms first, what is added to scores, and the padding."""
    padding = torch.arange(7) >= torch.tensor([7, 4])[:, None]
    return torch.randn(7, 2, 32), torch.randn(2, 4, 7, 7), padding


def _volumes() -> tuple[Any, ...]:
    """Return two volumes."""
    return (torch.randn(2, 16, 4, 5, 3),)


def _images_and_steps() -> tuple[Any, ...]:
    """Return two noisy images and their time steps."""
    return torch.randn(2, 3, 8, 8), torch.tensor([3, 40])


def _captions() -> tuple[Any, ...]:
    """Return the features of two images, their captions, and how long these are."""
    words = torch.arange(7) < torch.tensor([7, 5])[:, None]
    return torch.randn(2, 4, 4, 16), torch.randint(1, 50, (2, 7)) * words, torch.tensor([7, 5])


def _videos() -> tuple[Any, ...]:
    """Return the patches of 5 frames of two videos."""
    return (torch.randn(2, 5, 4, 16),)


def _channels_last() -> tuple[Any, ...]:
    """Return two feature maps of 7 × 7 pixels."""
    return (torch.randn(2, 7, 7, 16),)


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
    Case(
        "graphtrans_10",
        "GraphTransformer",
        "ucbrise/graphtrans#10",
        "mask-inverted",
        known_as=("padding-leak",),
        options=sizes(num_tasks=3, gnn_emb_dim=16, d_model=32, nhead=4, dim_feedforward=48),
        example=_graphs,
    ),
    Case(
        "ms_pred_38",
        "MultiheadAttention",
        "coleygroup/ms-pred#38",
        "dropout-in-eval",
        options=sizes(embed_dim=32, num_heads=4, dropout=0.1, self_attention=True),
        example=_molecules,
    ),
    Case(
        "ccnet_105",
        "CrissCrossAttention3D",
        "speedinghzl/CCNet#105",
        "weights-wrong",
        known_as=("context-wrong", "rows-not-normalised"),
        options=sizes(in_dim=16),
        example=_volumes,
    ),
    Case(
        "denoising_diffusion_pytorch_1",
        "Unet",
        "lucidrains/denoising-diffusion-pytorch#1",
        "attention-ignored",
        known_as=("projection-unused",),
        options=sizes(dim=16, dim_mults=(1, 2)),
        example=_images_and_steps,
    ),
    Case(
        "notes_4",
        "TransformerBackbone",
        "kvfrans/notes#4",
        "context-wrong",
        known_as=("projection-unused",),
        options=sizes(hidden_size=32, num_heads=4, depth=1),
    ),
    Case(
        "practical_nlp_1",
        "DecoderBlock",
        "keitakurita/Practical_NLP_in_PyTorch#1",
        "context-wrong",
        known_as=("keys-values-swapped", "future-leak", "crashes"),
        options={"causal": True, **sizes(d_model=32, d_feature=8, d_ff=48, n_heads=4)},
    ),
    Case(
        "pytorch_implementations_1",
        "DecoderWithAttention",
        "jaygala24/pytorch-implementations#1",
        "undefined-or-global-name",
        known_as=("crashes",),
        options=sizes(attention_dim=12, embed_dim=8, decoder_dim=24, vocab_size=50, encoder_dim=16),
        example=_captions,
    ),
    Case(
        "jafar_2",
        "STTransformer",
        "FLAIROx/jafar#2",
        "future-leak",
        options={
            "causal": True,
            **sizes(in_dim=16, model_dim=32, out_dim=16, num_blocks=1, num_heads=4),
        },
        example=_videos,
    ),
    Case(
        "timm_2438",
        "SwinTransformerV2Block",
        "huggingface/pytorch-image-models#2438",
        "weights-wrong",
        known_as=("mask-broadcast",),
        options=sizes(dim=16, num_heads=2, window_size=4, shift_size=2),
        example=_channels_last,
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


@proves("graphtrans_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, nodes = made(module.GraphTransformer, 3, 8, C, H, 24), tokens(13, 8)
    graphs, block, expected = torch.tensor([0] * 6 + [1] * 4 + [2] * 3), m.blocks[0], []
    for graph in range(3):
        x = m.gnn2transformer(nodes[graphs == graph])[None]
        y, a = block.ln1(x), block.attn
        x = x + a.proj(attended(a.query(y), a.key(y), a.value(y)))
        x = x + block.mlp(block.ln2(x))
        expected.append(m.graph_pred_linear(x.mean(1)))
    return m(nodes, graphs), torch.cat(expected)


@proves("ms_pred_38")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiheadAttention, C, H, 0.5, self_attention=True), tokens()
    bias = tokens(B, H, T, T)
    q, k, v = (heads(p(x)) for p in (m.q_proj, m.k_proj, m.v_proj))
    scores = q @ k.mT / 2 + bias
    weights = scores.masked_fill(~REAL[:, None, None], -torch.inf).softmax(-1)
    return m(x.transpose(0, 1), bias, ~REAL).transpose(0, 1), m.out_proj(merged(weights @ v))


@proves("ccnet_105")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.CrissCrossAttention3D, C), tokens(2, C, 3, 4, 2)
    torch.nn.init.ones_(m.gamma)
    places = torch.cartesian_prod(*(torch.arange(n) for n in x.shape[2:]))
    # Voxels on a common line differ in at most one coordinate.
    keep = (places[:, None] != places).sum(-1) < 2
    q, k, v = (c(x).flatten(2).mT for c in (m.query_conv, m.key_conv, m.value_conv))
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, scale=1.0)
    return m(x), x + context.mT.unflatten(2, x.shape[2:])


@proves("denoising_diffusion_pytorch_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Unet, C, dim_mults=(1, 2)), tokens(2, 3, 4, 4)
    time = torch.tensor([3.0, 40.0], dtype=torch.float64)
    for name, parameter in m.named_parameters():
        if name.endswith(".g"):
            torch.nn.init.constant_(parameter, 0.5)
    actual, t = m(x, time), m.time_mlp(time)

    def attention(wrapped: Any, x: Tensor) -> Tensor:
        a = wrapped.fn.fn
        q, k, v = (heads(y.flatten(2).mT) for y in a.to_qkv(x).chunk(3, 1))
        weights = q.softmax(-1) @ k.softmax(-2).mT
        return x + 0.5 * a.to_out(merged(weights @ v).mT.unflatten(2, x.shape[2:]))

    def level(blocks: Any, x: Tensor) -> Tensor:
        return attention(blocks[2], blocks[1](blocks[0](x, t), t))

    x = m.downs[0][3](level(m.downs[0], x))
    x = skipped = level(m.downs[1], x)
    x = m.mid_block2(attention(m.mid_attn, m.mid_block1(x, t)), t)
    x = m.ups[0][3](level(m.ups[0], torch.cat([x, skipped], 1)))
    return actual, m.final_conv(x)


@proves("notes_4")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TransformerBackbone, C, H, 1), tokens()
    block = m.blocks[0]
    a, y = block.attention, block.norm1(x)
    expected = x + a.to_out(attended(a.to_q(y), a.to_k(y), a.to_v(y)))
    return m(x), m.norm(expected + block.mlp(block.norm2(expected)))


@proves("practical_nlp_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, source = made(module.DecoderBlock, C, 4, 24, H), tokens(), tokens()

    def multi_head(layer: Any, x: Tensor, memory: Tensor, keep: Tensor) -> Tensor:
        q = torch.cat([head.query_tfm(x) for head in layer.attn_heads], -1)
        k = torch.cat([head.key_tfm(memory) for head in layer.attn_heads], -1)
        v = torch.cat([head.value_tfm(memory) for head in layer.attn_heads], -1)
        return layer.projection(attended(q, k, v, keep))

    y = x + m.layer_norm1(multi_head(m.masked_attn_head, x, x, CAUSAL))
    y = y + m.layer_norm2(multi_head(m.attn_head, y, source, REAL))
    y = y + m.layer_norm3(m.position_wise_feed_forward(y))
    return m(x, source, ~REAL[:, None], ~CAUSAL[None]), y


@proves("pytorch_implementations_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.DecoderWithAttention, 12, 8, 24, 50, encoder_dim=C)
    images, captions = tokens(B, 3, 3, C), torch.randint(1, 50, (B, T))
    lengths = REAL.sum(-1)
    predictions, alphas = m(images, captions, lengths)
    expected, weights = torch.zeros_like(predictions), torch.zeros_like(alphas)
    # One image at a time.
    for i, length in enumerate(lengths.tolist()):
        pixels, a = images[i].flatten(0, 1), m.attention
        h, c = m.init_h(pixels.mean(0)), m.init_c(pixels.mean(0))
        for t in range(length - 1):
            scores = F.relu(a.encoder_att(pixels) + a.decoder_att(h)) @ a.full_att.weight[0]
            weights[i, t] = scores.softmax(-1)
            context = torch.sigmoid(m.f_beta(h)) * (weights[i, t].clone() @ pixels)
            h, c = m.decode_step(torch.cat([m.embedding(captions[i, t]), context]), (h, c))
            expected[i, t] = m.fc(h)
    return torch.cat([predictions, alphas], -1), torch.cat([expected, weights], -1)


@proves("jafar_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, video = made(module.STTransformer, C, 16, 8, 1, H), tokens(B, T, 4, C)
    block = m.blocks[0]

    def attention(a: Any, x: Tensor, keep: Tensor | None = None) -> Tensor:
        return a.out(attended(a.query(x), a.key(x), a.value(x), keep))

    x = m.embed(video) + m.positions.pe[:4]
    y = block.spatial_norm(x)
    x = x + torch.stack([attention(block.spatial_attention, y[:, t]) for t in range(T)], 1)
    y = block.temporal_norm(x)
    x = x + torch.stack(
        [attention(block.temporal_attention, y[:, :, n], CAUSAL) for n in range(4)], 2
    )
    return m(video), m.out(x + F.gelu(block.ffn(block.ffn_norm(x))))


@proves("timm_2438")
def _(module: Any) -> tuple[Tensor, Tensor]:
    actual, expected = [], []
    for height, width, shift in ((7, 5, 2), (5, 8, 1), (6, 7, 0), (8, 4, 2)):
        m, x = made(module.SwinTransformerV2Block, C, H, 4, shift), tokens(2, height, width, C)
        a, pixels = m.attn, x.flatten(1, 2)
        places = torch.cartesian_prod(torch.arange(height), torch.arange(width))
        # The windows are those of an endless grid that is moved by the shift.
        windows = (places - shift).div(4, rounding_mode="floor")
        keep = (windows[:, None] == windows).all(-1)
        away = (places[:, None] - places).float() / 3 * 8
        away = away.sign() * (away.abs() + 1).log2() / 3
        q, k, v = (heads(y) for y in a.qkv(pixels).chunk(3, -1))
        bias = 16 * a.cpb_mlp(away.double()).sigmoid().permute(2, 0, 1)
        scale = a.logit_scale.clamp(max=math.log(100)).exp()
        scores = torch.cosine_similarity(q[..., :, None, :], k[..., None, :, :], dim=-1)
        weights = (scores * scale + bias).masked_fill(~keep, -torch.inf).softmax(-1)
        y = pixels + m.norm1(a.proj(merged(weights @ v)))
        actual.append(m(x).flatten())
        expected.append((y + m.norm2(m.mlp(y))).flatten())
    return torch.cat(actual), torch.cat(expected)
