"""What each bug of new_held_out.py gets wrong, in numbers, as `proofs.py` has it for the first ones."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
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
