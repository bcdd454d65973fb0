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
from upstream.proofs import CAUSAL, REAL, B, C, H, T, attended, heads, made, merged, proves, tokens


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
