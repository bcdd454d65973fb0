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


def _points() -> tuple[Any, ...]:
    """Return the features of 6 points of two clouds, and their coordinates."""
    return torch.randn(2, 6, 16), torch.randn(2, 6, 3)


def _globe() -> tuple[Any, ...]:
    """Return two signals on a grid of 4 latitudes and 6 longitudes."""
    return (torch.randn(2, 16, 4, 6),)


def _edges() -> tuple[Any, ...]:
    """Return the features of 5 nodes and the sources and targets of 8 edges."""
    edges = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 4], [1, 2, 3, 4, 0, 2, 4, 1]])
    return torch.randn(5, 16), edges


def _residues() -> tuple[Any, ...]:
    """Return two proteins of 5 residues, their pairs, and the frames of the residues."""
    rotations = torch.linalg.qr(torch.randn(2, 5, 3, 3)).Q
    return torch.randn(2, 5, 16), torch.randn(2, 5, 5, 16), rotations, torch.randn(2, 5, 3)


def _captions() -> tuple[Any, ...]:
    """Return the states of a decoder after the words of two captions, and where there is a word."""
    return torch.randn(2, 6, 16), torch.arange(6) < torch.tensor([[6], [4]])


def _people() -> tuple[Any, ...]:
    """Return noisy origins and goals of up to 6 people, the steps, the scenes and the numbers of people."""
    return torch.rand(2, 6, 4), torch.tensor([3, 7]), torch.randn(2, 16), torch.tensor([6, 4])


def _clips() -> tuple[Any, ...]:
    """Return the frames of two clips, one after the other, and how many there are of each."""
    return torch.randn(17, 32), torch.tensor([10, 7])


def _sentences() -> tuple[Any, ...]:
    """Return two sentences of 6 words."""
    return (torch.randint(1, 20, (2, 6)),)


def _places_and_prompt() -> tuple[Any, ...]:
    """Return 6 places of two images, and 5 tokens of the image prompt with 4 of a face."""
    return torch.randn(2, 6, 16), torch.randn(2, 9, 12)


def _episodes() -> tuple[Any, ...]:
    """Return 6 steps of two episodes, steps first."""
    return (torch.randn(6, 2, 16),)


def _pyramid() -> tuple[Any, ...]:
    """Return 5 queries, their reference points, and feature maps of 4 × 6 and 2 × 3 places."""
    shapes = torch.tensor([[4, 6], [2, 3]])
    return torch.randn(2, 5, 16), torch.rand(2, 5, 2, 2), torch.randn(2, 30, 16), shapes


def _channels() -> tuple[Any, ...]:
    """Return the features of 5 channels, and their values at 8 steps."""
    return torch.randn(2, 5, 16), torch.randn(2, 5, 8)


def _pairs_of_sentences() -> tuple[Any, ...]:
    """Return two pairs of sentences of 7 words together, and which sentence each word belongs to."""
    return torch.randint(0, 20, (2, 7)), (torch.arange(7) > 3).long().expand(2, 7)


HELD_OUT = (
    Case(
        "point_transformer_pytorch_3",
        "PointTransformerLayer",
        "lucidrains/point-transformer-pytorch#3",
        "softmax-wrong-dim",
        known_as=("rows-not-normalised",),
        options=sizes(dim=16, pos_mlp_hidden_dim=8, attn_mlp_hidden_mult=2),
        example=_points,
    ),
    Case(
        "invariant_point_attention_1",
        "InvariantPointAttention",
        "lucidrains/invariant-point-attention#1",
        "scale-missing",
        known_as=("scale-wrong",),
        options=sizes(dim=16, heads=2, scalar_key_dim=8, scalar_value_dim=8),
        example=_residues,
    ),
    Case(
        "set_transformer_18",
        "SAB",
        "juho-lee/set_transformer#18",
        "scale-wrong",
        options=sizes(dim_in=32, dim_out=32, num_heads=4),
    ),
    Case(
        "recnet_13",
        "LocalReconstructor",
        "hobincar/RecNet#13",
        "mask-fill-too-small",
        known_as=("mask-after-softmax", "mask-unused", "padding-leak", "rows-not-normalised"),
        options=sizes(feat_size=12, hidden_size=16, bottleneck_size=8),
        example=_captions,
    ),
    Case(
        "dnabert_102",
        "BertLayer",
        "jerryji1993/DNABERT#102",
        "mask-fill-too-small",
        known_as=("mask-unused", "padding-leak"),
    ),
    Case(
        "crowd_behavior_11",
        "EmitterDenoiser",
        "InhwanBae/Crowd-Behavior-Generation#11",
        "mask-inverted",
        known_as=("padding-leak",),
        options=sizes(),
        example=_people,
    ),
    Case(
        "qwen3_asr_103",
        "AudioEncoder",
        "QwenLM/Qwen3-ASR#103",
        "window-missing",
        known_as=("mask-unused", "batch-mixed"),
        options=sizes(),
        example=_clips,
    ),
    Case(
        "bilstm_attn_3",
        "bilstm_attn",
        "u784799i/biLSTM_attn#3",
        "batch-mixed",
        known_as=("softmax-wrong-dim", "heads-mixed-split"),
        options=sizes(output_size=3, hidden_size=8, vocab_size=20, embed_dim=12),
        example=_sentences,
    ),
    Case(
        "stableanimator_111",
        "AnimationIDAttention",
        "Francis-Rings/StableAnimator#111",
        "projection-unused",
        options=sizes(hidden_size=16, cross_attention_dim=12, heads=4),
        example=_places_and_prompt,
    ),
    Case(
        "beat_transformer_18",
        "DilatedSelfAttention",
        "zhaojw1998/Beat-Transformer#18",
        "group-order",
        known_as=("projection-unused", "weights-wrong"),
        options=sizes(dmodel=32),
    ),
    Case(
        "torch_harmonics_221",
        "AttentionS2",
        "NVIDIA/torch-harmonics#221",
        "dropout-in-eval",
        options=sizes(in_channels=16, num_heads=4, in_shape=(4, 6), drop_rate=0.1),
        example=_globe,
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
        "deformable_detr_7",
        "MSDeformAttn",
        "fundamentalvision/Deformable-DETR#7",
        "context-wrong",
        known_as=("weights-wrong",),
        options=sizes(d_model=16, n_levels=2, n_heads=2, n_points=2),
        example=_pyramid,
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
        "duet_6",
        "ChannelEncoderLayer",
        "decisionintelligence/DUET#6",
        "projection-unused",
        known_as=("weights-wrong",),
        options=sizes(seq_len=8, d_model=16, n_heads=4),
        example=_channels,
    ),
    Case(
        "d2l_2121",
        "BERTEncoder",
        "d2l-ai/d2l-en#2121",
        "gradient-wrong",
        options=sizes(
            vocab_size=20, num_hiddens=16, ffn_num_hiddens=24, num_heads=4, num_blks=1, dropout=0.1
        ),
        example=_pairs_of_sentences,
    ),
)


# --- softmax -----------------------------------------------------------------------------------------


@proves("point_transformer_pytorch_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.PointTransformerLayer, dim=C, pos_mlp_hidden_dim=8, attn_mlp_hidden_mult=2)
    x, places = tokens(), tokens(B, T, 3)
    q, k, v = m.to_qkv(x).chunk(3, -1)
    shift = m.pos_mlp(places[:, :, None] - places[:, None])
    weights = m.attn_mlp(q[:, :, None] - k[:, None] + shift).softmax(2)
    return m(x, places), (weights * (v[:, None] + shift)).sum(2)


# --- scale -------------------------------------------------------------------------------------------


@proves("invariant_point_attention_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.InvariantPointAttention, dim=C, heads=H, scalar_key_dim=5)
    x, pairs, origins = tokens(), tokens(B, T, T, C), tokens(B, T, 3)
    frames = torch.linalg.qr(tokens(B, T, 3, 3)).Q
    q, k, v = (
        (heads(project(x)).unflatten(-1, (4, 3)) @ frames[:, None] + origins[:, None, :, None])
        for project in (m.to_point_q, m.to_point_k, m.to_point_v)
    )
    distances = torch.cdist(q.flatten(3), k.flatten(3)) ** 2
    scores = heads(m.to_scalar_q(x)) @ heads(m.to_scalar_k(x)).mT / 15**0.5
    scores = scores - F.softplus(m.point_weights)[:, None, None] * distances / 2 / 54**0.5
    scores = scores + m.to_pairwise_attn_bias(pairs).permute(0, 3, 1, 2) / 3**0.5
    weights = scores.softmax(-1)
    places = torch.einsum("bhij,bhjdc->bhidc", weights, v) - origins[:, None, :, None]
    places = places @ frames.mT[:, None]
    found = torch.einsum("bhij,bijd->bhid", weights, pairs)
    lengths = (places.square().sum(-1) + 1e-8).sqrt()
    parts = weights @ heads(m.to_scalar_v(x)), places.flatten(3), lengths, found
    expected = m.to_out(torch.cat([merged(part) for part in parts], -1))
    return m(x, pairs, frames, origins), expected


@proves("set_transformer_18")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SAB, C, C, H), tokens()
    q = m.mab.fc_q(x)
    context = q + attended(q, m.mab.fc_k(x), m.mab.fc_v(x))
    return m(x), context + F.relu(m.mab.fc_o(context))


# --- masks -------------------------------------------------------------------------------------------


@proves("recnet_13")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, states = made(module.LocalReconstructor, 5, C, 7), tokens()
    alone = [m(row[None, real], real[None, real]) for row, real in zip(states, REAL, strict=True)]
    return m(states, REAL), torch.cat(alone)


@proves("dnabert_102")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.BertLayer, module.BertConfig(hidden_size=C)), tokens()
    alone = [m(row[None, real])[0] for row, real in zip(x, REAL, strict=True)]
    return m(x, REAL.long())[REAL], torch.cat(alone)


@proves("crowd_behavior_11")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, people = made(module.EmitterDenoiser, C, H, context_dim=5), tokens(B, T, 4)
    steps, scenes, counts = torch.tensor([1, 5, 9]), tokens(B, 5), REAL.sum(1)
    alone = [m(people[[i], : counts[i]], steps[[i]], scenes[[i]], counts[[i]])[0] for i in range(B)]
    return m(people, steps, scenes, counts)[REAL], torch.cat(alone)


# --- windows -----------------------------------------------------------------------------------------


@proves("qwen3_asr_103")
def _(module: Any) -> tuple[Tensor, Tensor]:
    config = module.AudioEncoderConfig(d_model=C, n_window=3)
    m, frames = made(module.AudioEncoder, config), tokens(9, C)
    alone = [m(window, torch.tensor([len(window)])) for window in frames.split([3, 2, 3, 1])]
    return m(frames, torch.tensor([5, 4])), torch.cat(alone)


@proves("lalamo_200")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H, 2, 4, sliding_window_size=3), tokens()
    return in_steps(m, x), m(x)[0]


# --- heads and batch ---------------------------------------------------------------------------------


@proves("bilstm_attn_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, words = made(module.bilstm_attn, 3, 5, 20, 7), torch.randint(1, 20, (B, T))
    return m(words), torch.cat([m(row[None]) for row in words])


@proves("beat_transformer_18")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.DilatedSelfAttention, C), tokens()
    q, k, v = (heads(project(x), 8) for project in (m.query, m.key, m.value))
    context = torch.zeros_like(q)
    for head, shift in enumerate((0, 0, 0, 0, -2, -1, 1, 2)):
        for frame in range(T):
            seen = {i: frame + i - 2 + shift for i in range(5) if 0 <= frame + i - 2 + shift < T}
            keys = k[:, head, list(seen.values())] + m.Er[head][:, list(seen)].T
            weights = (torch.einsum("bd,bid->bi", q[:, head, frame], keys) / 2**0.5).softmax(-1)
            values = v[:, head, list(seen.values())]
            context[:, head, frame] = torch.einsum("bi,bid->bd", weights, values)
    return m(x), merged(context)


# --- projections -------------------------------------------------------------------------------------


@proves("stableanimator_111")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AnimationIDAttention, C, 12, H, num_tokens=2), tokens()
    prompt, face = tokens(B, 3, 12), tokens(B, 2, 12)
    of_prompt = attended(m.to_q(x), m.to_k(prompt), m.to_v(prompt))
    of_face = attended(m.to_q(x), m.to_k_ip(face), m.to_v_ip(face))
    expected = m.to_out[0](of_prompt + m.align(of_face, of_prompt))
    return m(x, torch.cat([prompt, face], 1)), expected


@proves("duet_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, series = made(module.ChannelEncoderLayer, 7, C, H), tokens(), tokens(B, T, 7)
    spectra = torch.fft.rfft(series).abs() @ m.mask_generator.A.T
    near = (-((spectra[:, :, None] - spectra[:, None]) ** 2).sum(-1)).exp().clamp(min=1e-6)
    q, k, v = (
        heads(project(x)) for project in (m.query_projection, m.key_projection, m.value_projection)
    )
    context = merged(F.scaled_dot_product_attention(q, k, v, attn_mask=near.log()[:, None]))
    y = m.norm1(x + m.out_projection(context))
    return m(x, series), m.norm2(y + m.conv2(m.conv1(y.mT).relu()).mT)


# --- dropout -----------------------------------------------------------------------------------------


@proves("torch_harmonics_221")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.AttentionS2, C, H, (3, 4), drop_rate=0.5), tokens(B, C, 3, 4)
    q, k, v = (heads(conv(image).flatten(2).mT) for conv in (m.q_proj, m.k_proj, m.v_proj))
    areas = torch.sin((torch.arange(3) + 0.5) * torch.pi / 3).double().repeat_interleave(4)
    context = merged(F.scaled_dot_product_attention(q, k, v, attn_mask=areas.log().expand(12, 12)))
    return m(image), m.proj(context.mT.reshape(B, C, 3, 4))


# --- positions and caches ----------------------------------------------------------------------------


@proves("transformers_rl_7")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.StableTransformerXL, C, 2, 5, n_layers=2), tokens(T, B, C)
    first, memory = m(x[:2])
    second, memory = m(x[2:5], memory)
    return torch.cat([first, second, m(x[5:], memory)[0]]), m(x)[0]


@proves("deformable_detr_7")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.MSDeformAttn, C, n_levels=2, n_heads=2, n_points=3)
    query, corners, places = tokens(), tokens(B, T, 2, 2).sigmoid(), tokens(B, 21, C)
    shapes = torch.tensor([[3, 5], [2, 3]])
    offsets = m.sampling_offsets(query).view(B, T, 2, 2, 3, 2)
    weights = m.attention_weights(query).view(B, T, 2, 6).softmax(-1).view(B, T, 2, 2, 3)
    value = m.value_proj(places).view(B, 21, 2, 8)
    locations = corners[:, :, None, :, None] + offsets / shapes.flip(1)[:, None]
    read = module.ms_deform_attn_core_pytorch(value, shapes, locations, weights)
    return m(query, corners, places, shapes), m.output_proj(read)


# --- gradients and dtypes ----------------------------------------------------------------------------


@proves("d2l_2121")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.BERTEncoder, 20, C, 24, H, 1, 0.0)
    words, sentences = torch.randint(20, (B, T)), torch.randint(2, (B, T))
    direction, weights = torch.randn_like(m.pos_embedding), tokens()
    (m(words, sentences) * weights).sum().backward()
    grad = m.pos_embedding.grad
    actual = torch.zeros(()) if grad is None else (grad * direction).sum()
    values = []
    for step in (1e-6, -1e-6):
        with torch.no_grad():
            m.pos_embedding += step * direction
            values.append((m(words, sentences) * weights).sum())
            m.pos_embedding -= step * direction
    expected = (values[0] - values[1]) / 2e-6
    return actual / expected, torch.ones(())
