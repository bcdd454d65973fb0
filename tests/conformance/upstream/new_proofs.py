"""What each bug of new_held_out.py gets wrong, in numbers, as `proofs.py` has it for the first ones."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
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

# --- softmax -----------------------------------------------------------------------------------------


@proves("point_transformer_pytorch_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.PointTransformerLayer, dim=C, pos_mlp_hidden_dim=8, attn_mlp_hidden_mult=2)
    x, places = tokens(), tokens(B, T, 3)
    q, k, v = m.to_qkv(x).chunk(3, -1)
    shift = m.pos_mlp(places[:, :, None] - places[:, None])
    weights = m.attn_mlp(q[:, :, None] - k[:, None] + shift).softmax(2)
    return m(x, places), (weights * (v[:, None] + shift)).sum(2)


@proves("external_attention_18")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.SKAttention, C, (1, 3), 4), tokens(B, C, 3, 4)
    maps = torch.stack([conv(image) for conv in m.convs])
    summary = m.fc(maps.sum(0).mean((2, 3)))
    weights = torch.stack([choose(summary) for choose in m.fcs]).softmax(0)
    return m(image), torch.einsum("kbc,kbchw->bchw", weights, maps)


@proves("dgl_3267")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.DotGatConv, C, 5, 2), tokens(3, C)
    edges = torch.cartesian_prod(torch.arange(3), torch.arange(3)).T
    nodes = m.fc(x).view(3, 2, 5).transpose(0, 1)
    return m(x, edges), F.scaled_dot_product_attention(nodes, nodes, nodes).transpose(0, 1)


@proves("e3tools_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiheadAttention, C, C, 8, 3, 2), tokens(4, C) * 1e4
    sources, targets = torch.cartesian_prod(torch.arange(4), torch.arange(4)).T
    attributes = tokens(16, 3)
    q = m.h_q(x).view(4, 2, 4)
    k, v = (
        make(x[sources], attributes).view(4, 4, 2, -1).transpose(0, 1) for make in (m.h_k, m.h_v)
    )
    weights = (torch.einsum("thi,ij,tshj->tsh", q, m.dot_weight, k) / 4).softmax(1)
    expected = m.lin_out(torch.einsum("tsh,tshd->thd", weights, v).flatten(1))
    actual = m(x, torch.stack([sources, targets]), attributes)
    return actual / expected.abs().max(), expected / expected.abs().max()


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


@proves("swin_transformer_v2_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, window = made(module.WindowMultiHeadAttention, C, 2, H), tokens(B, C, 2, 2)
    q, k, v = (heads(part) for part in m.mapping_qkv(window.flatten(2).mT).chunk(3, -1))
    bias = m.meta_network(m.relative_coordinates_log).permute(2, 0, 1)
    cosines = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
    out = m.projection(merged((cosines / m.tau + bias).softmax(-1) @ v))
    return m(window), out.mT.reshape(B, C, 2, 2)


# --- masks -------------------------------------------------------------------------------------------


@proves("vllm_omni_5704")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.DiTAttention, C, H, 4), tokens()
    alone = [m(row[None, real])[0] for row, real in zip(x, REAL, strict=True)]
    return m(x, REAL)[REAL], torch.cat(alone)


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


@proves("mist_17")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiheadAttention, C, H), tokens()
    q, k, v = F.linear(x, m.in_proj_weight, m.in_proj_bias).chunk(3, -1)
    return m(x, x, x, ~REAL)[0], m.out_proj(attended(q, k, v, REAL))


@proves("srformer_14")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.PSA_Block, C, 2), tokens(B, 8, 12, C)
    x = m.norm1(image).roll((-2, -2), (1, 2))
    expected = torch.zeros_like(x)
    for i, j in ((i, j) for i in (0, 4) for j in (0, 4, 8)):
        window = x[:, i : i + 4, j : j + 4]
        cells = m.attn.kv(window).view(B, 2, 2, 2, 2, 2, 4).permute(5, 0, 1, 3, 2, 4, 6)
        k, v = cells.reshape(2, B, 4, C)
        from_top, from_left = torch.arange(i, i + 4) >= 6, torch.arange(j, j + 4) >= 10
        region = from_top[:, None] * 2 + from_left
        keep = region.flatten()[:, None] == region[::2, ::2].flatten()
        context = attended(m.attn.q(window.flatten(1, 2)), k, v, keep, count=2)
        expected[:, i : i + 4, j : j + 4] = m.attn.proj(context).view(B, 4, 4, C)
    return m(image), image + expected.roll((2, 2), (1, 2))


@proves("unitraj_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, agents, roads = made(module.MapAwareDecoderLayer, C), tokens(), tokens(B, 4, 5, 3)
    roads[..., 2] = 1.0
    roads[0, 2] = roads[1] = 0.0
    keep = torch.tensor([[1, 1, 0, 1], [1, 0, 0, 0], [1, 1, 1, 1]]).bool()
    segments = m.map_encoder(roads)[0].transpose(0, 1)
    a = m.map_attn_layer
    weights, biases = a.in_proj_weight.chunk(3), a.in_proj_bias.chunk(3)
    q, k, v = map(F.linear, (agents, segments, segments), weights, biases)
    return m(agents, roads), m.norm(agents + a.out_proj(attended(q, k, v, keep, count=2)))


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


@proves("pytorch_networks_45")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.NonLocalBlock, C), tokens(B, C, 3, 4)
    q, k, v = (conv(image).flatten(2).mT for conv in (m.conv_theta, m.conv_phi, m.conv_g))
    context = F.scaled_dot_product_attention(q, k, v, scale=1.0)
    return m(image), image + m.conv_mask(context.mT.reshape(B, C // 2, 3, 4))


@proves("bilstm_attn_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, words = made(module.bilstm_attn, 3, 5, 20, 7), torch.randint(1, 20, (B, T))
    return m(words), torch.cat([m(row[None]) for row in words])


@proves("molecule_generator_22")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, ids = made(module.TransformerVAE, 20, C, H), torch.randint(20, (B, T))
    return m(ids)[0], torch.cat([m(row[None])[0] for row in ids])


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


@proves("tiny_universe_21")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Qwen2Attention, module.Qwen2Config(C)), tokens()
    q, k = rotated(heads(m.q_proj(x))), rotated(heads(m.k_proj(x), 2))
    k, v = (part.repeat_interleave(2, 1) for part in (k, heads(m.v_proj(x), 2)))
    return m(x), m.o_proj(merged(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


# --- projections -------------------------------------------------------------------------------------


@proves("vqgan_23")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.NonLocalBlock, C), tokens(B, C, 3, 4)
    normed = m.gn(image)
    q, k, v = (conv(normed).flatten(2).mT for conv in (m.q, m.k, m.v))
    context = F.scaled_dot_product_attention(q, k, v).mT.reshape(B, C, 3, 4)
    return m(image), image + m.proj_out(context)


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


@proves("audio_flamingo_27")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TransformerEncoder, C, H, 4, 4), tokens()
    a = m.slf_attn
    q, k = (rotated(heads(project(x)), interleaved=True) for project in (a.w_qs, a.w_ks))
    context = merged(F.scaled_dot_product_attention(q, k, heads(a.w_vs(x))))
    return m(x), m.layer_norm(x + a.fc(context))


@proves("nnformer_88")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, skip, up = made(module.WindowAttention_kv, C, (2, 2, 2), H), tokens(B, 8, C), tokens(B, 8, C)
    with torch.no_grad():
        m.relative_position_bias_table += tokens(27, H)  # as after some steps of training
    places = torch.cartesian_prod(*[torch.arange(2)] * 3)
    s, h, w = (places[:, None] - places + 1).unbind(-1)
    bias = m.relative_position_bias_table.view(3, 3, 3, H)[s, h, w].permute(2, 0, 1)
    k, v = m.kv(up).chunk(2, -1)
    return m(skip, up), m.proj(attended(skip, k, v, bias))


@proves("attention_gym_86")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AlibiAttention, C, H), tokens()
    distances = torch.arange(T)[:, None] - torch.arange(T)
    slopes = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256]).double()[:, None, None]
    bias = (-slopes * distances).masked_fill(~CAUSAL, -torch.inf)
    q, k, v = m.qkv(x).chunk(3, -1)
    return m(x), m.out(attended(q, k, v, bias))


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


@proves("linear_attention_mechanism_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.PositionLinearAttention, C), tokens(B, C, 3, 4)
    with torch.no_grad():
        m.gamma += 1.0  # as after some steps of training
    q, k = (F.normalize(conv(image).flatten(2).mT, dim=-1) for conv in (m.query_conv, m.key_conv))
    weights = 1 + q @ k.mT
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-6 * q.sum(-1, keepdim=True))
    context = weights @ m.value_conv(image).flatten(2).mT
    return m(image), image + context.mT.reshape(B, C, 3, 4)


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


@proves("apex_816")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SelfMultiheadAttn, C, H), tokens().requires_grad_()
    q, k, v = m.in_proj(x).unflatten(-1, (3, C)).unbind(-2)
    expected = m.out_proj(attended(q, k, v, REAL))
    grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (m(x, ~REAL), expected)]
    return grads[0], grads[1]


@proves("hunyuandit_247")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, prompt = made(module.CrossAttention, C, 12, H), tokens(), tokens(B, T, 12)
    k, v = m.kv_proj(prompt).unflatten(-1, (2, H, 4)).permute(2, 0, 3, 1, 4)
    q = rotated(m.q_norm(heads(m.q_proj(x))), interleaved=True)
    context = F.scaled_dot_product_attention(q, m.k_norm(k), v, attn_mask=REAL[:, None, None])
    return m(x, prompt, REAL), m.out_proj(merged(context))
