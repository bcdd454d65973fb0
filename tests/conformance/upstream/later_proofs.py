"""What each bug of known_later.py gets wrong, in numbers, as `proofs.py` has it for the first ones."""

from __future__ import annotations

import copy
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

# --- scale -------------------------------------------------------------------------------------------


@proves("machine_learning_collection_159")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.SelfAttention, C, H), tokens(), tokens()
    expected = m.fc_out(attended(m.queries(x), m.keys(y), m.values(y), REAL))
    return m(y, y, x, REAL[:, None, None]), expected


@proves("transformers_38290")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.OPTAttention, module.OPTConfig(hidden_size=C)), tokens()
    context = attended(m.q_proj(x), m.k_proj(x), m.v_proj(x), REAL)
    mask = torch.zeros(B, 1, 1, T).double().masked_fill(~REAL[:, None, None], -torch.inf)
    return m(x, mask), m.out_proj(context)


@proves("timm_2388")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.MultiQueryAttentionV2, C, num_heads=H, key_dim=9), tokens(B, C, 3, 4)
    x = image.flatten(2).transpose(1, 2)
    q = torch.einsum("bnd,hkd->bhnk", x, m.query_proj)
    k, v = ((x @ weight)[:, None] for weight in (m.key_proj, m.value_proj))
    context = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    return m(image), torch.einsum("bhnv,dhv->bdn", context, m.out_proj).view_as(image)


# --- softmax -----------------------------------------------------------------------------------------


@proves("detr_247")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, q, image = made(module.MHAttentionMap, C, C, H), tokens(), tokens(B, C, 3, 4)
    key = heads(m.k_linear(image.flatten(2).transpose(1, 2)))
    weights = (heads(m.q_linear(q)) @ key.mT / 2.0).softmax(-1)
    return m(q, image), weights.transpose(1, 2).unflatten(-1, (3, 4))


@proves("self_attention_gan_11")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.Self_Attn, C, "relu"), tokens(B, C, 3, 4)
    with torch.no_grad():
        m.gamma += 1.0  # as after some steps of training
    q, k, v = (conv(image).flatten(2) for conv in (m.query_conv, m.key_conv, m.value_conv))
    context = v @ (q.mT @ k).softmax(-1).mT
    return m(image)[0], context.view_as(image) + image


@proves("catalyst_285")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.LamaPooling, C), tokens()
    conv = m.groups[-1].attention_pooling[0]
    weights = (x @ conv.weight[0] + conv.bias).softmax(1)
    pooled = (x[:, -1], x.mean(1), x.amax(1), (weights * x).sum(1))
    return m(x), torch.cat(pooled, -1)


@proves("keqa_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.EmbedVector, C, 5, 9), tokens(T, B, C)
    states = m.lstm(x)[0]
    weights = m.attn(torch.cat([x, states], -1)).softmax(0)
    return m(x), m.hidden2tag((weights * states).sum(0))


@proves("recbole_1483")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, query, x = made(module.InterestEvolvingLayer, C, 5), tokens(B, C), tokens()
    weights = m.attention_layer(query, x, REAL.sum(-1))
    return weights.sum(-1), torch.ones(B)


@proves("flash_linear_attention_594")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.LinearAttention, C, H), tokens()
    q, k = F.elu(heads(m.q_proj(x))) + 1, F.elu(heads(m.k_proj(x))) + 1
    weights = (q @ k.mT).tril()
    context = weights / weights.sum(-1, keepdim=True) @ heads(m.v_proj(x))
    return m(x), m.o_proj(merged(context))


@proves("pytorch_geometric_224")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.GATConv, C, 5, heads=2), tokens(4, C)
    edges = torch.tensor([[0, 1, 2, 3, 0, 3], [1, 2, 0, 0, 2, 1]])
    linked = torch.zeros(4, 4, dtype=torch.bool)
    linked[edges[1], edges[0]] = True
    linked[3, 3] = True  # the node without neighbors receives nothing
    values = (x @ m.weight).view(4, 2, 5)
    ours, theirs = m.att[0].chunk(2, -1)
    scores = (values * ours).sum(-1)[:, None] + (values * theirs).sum(-1)
    scores = F.leaky_relu(scores, 0.2).masked_fill(~linked[..., None], -torch.inf)
    out = torch.einsum("ijh,jhd->ihd", scores.softmax(1), values).flatten(1)
    out[3] = 0.0
    return m(x, edges), out + m.bias


# --- heads and batch ---------------------------------------------------------------------------------


@proves("chinese_text_classification_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Multi_Head_Attention, C, H), tokens()
    return m(x), m.layer_norm(m.fc(attended(m.fc_Q(x), m.fc_K(x), m.fc_V(x))) + x)


@proves("transformer_neural_network_4")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiheadAttention, C, H), tokens()
    q, k, v = (part.flatten(2) for part in m.qkv_layer(x).unflatten(-1, (H, -1)).chunk(3, -1))
    return m(x), m.linear_layer(attended(q, k, v))


@proves("open_sora_plan_171")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, video = made(module.AttnBlock3D, C), tokens(B, C, 2, 3, 4)
    x = m.norm(video)
    q, k, v = (
        conv(x).permute(0, 2, 3, 4, 1).flatten(2, 3).flatten(0, 1) for conv in (m.q, m.k, m.v)
    )
    context = F.scaled_dot_product_attention(q, k, v)
    context = context.view(B, 2, 3, 4, C).permute(0, 4, 1, 2, 3)
    return m(video), video + m.proj_out(context)


@proves("tabformer_14")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, ids = made(module.TabFormerEmbeddings, 20, 5), torch.randint(0, 20, (B, 4, 5))
    alone = [torch.cat([m(row.view(1, 1, 5)) for row in table], 1) for table in ids]
    return m(ids), torch.cat(alone)


# --- masks -------------------------------------------------------------------------------------------


@proves("graphormer_pyg_14")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.GraphormerMultiHeadAttention, 2, C, 8, 8), tokens(9, C)
    bias = tokens(9, 9)
    alone = [m(x[s], bias[s, s], torch.tensor([0, len(x[s])])) for s in (slice(4), slice(4, 9))]
    return m(x, bias, torch.tensor([0, 4, 9])), torch.cat(alone)


@proves("graph_transformer_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, edges = made(module.Attention, C, 4, H), tokens(), tokens(B, T, T, C)
    alone = [
        m(row[None, real], pairs[None, real][:, :, real])[0]
        for row, pairs, real in zip(x, edges, REAL, strict=True)
    ]
    return m(x, edges, REAL)[REAL], torch.cat(alone)


@proves("s3prl_579")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AttentivePooling, C, 5), tokens()
    lengths = REAL.sum(-1)
    alone = [m(row[None, :n], n[None]) for row, n in zip(x, lengths, strict=True)]
    return m(x, lengths), torch.cat(alone)


@proves("llms_from_scratch_1061")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MHAPyTorchSDPAWithoutFlash, C, 24, H, 9), tokens()
    q, k, v = m.qkv(x).chunk(3, -1)
    return m(x), m.proj(attended(q, k, v, CAUSAL))


@proves("transformers_38094")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Llama4TextAttention, C, H, 2), tokens()
    keep = (CAUSAL & REAL[:, None])[:, None]
    mask = torch.zeros(B, 1, T, T).double().masked_fill(~keep, torch.finfo(torch.float64).min)
    q, k, v = heads(m.q_proj(x)), heads(m.k_proj(x), 2), heads(m.v_proj(x), 2)
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, enable_gqa=True)
    return m(x, mask), m.o_proj(merged(context))


@proves("xformers_103")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, q, k, v = made(module.ScaledDotProduct, causal=True), tokens(), tokens(), tokens()
    return m(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True)


@proves("diffusers_12294")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image, text = made(module.QwenDoubleStreamAttention, C, H), tokens(B, 5, C), tokens()
    alone = [
        m(pixels[None], row[None, real])[0]
        for pixels, row, real in zip(image, text, REAL, strict=True)
    ]
    return m(image, text, REAL.long())[0], torch.cat(alone)


@proves("matchzoo_163")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.MatchModule, C), tokens(), tokens()
    alone = [
        m(row[None], other[None, real], torch.zeros(1, int(real.sum())))
        for row, other, real in zip(x, y, REAL, strict=True)
    ]
    return m(x, y, ~REAL), torch.cat(alone)


@proves("mead_baseline_679")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, query, y = made(module.BahdanauAttention, C), tokens(B, C), tokens()
    alone = [
        m(state[None], row[None, real], row[None, real])
        for state, row, real in zip(query, y, REAL, strict=True)
    ]
    return m(query, y, y, REAL.long()), torch.cat(alone)


@proves("fairseq_3575")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TransformerEncoderLayer, C, H), tokens(T, B, C)
    expected = m(x, attn_mask=~CAUSAL)
    actual = copy.deepcopy(m).half()(x.half(), attn_mask=~CAUSAL).double()
    return torch.where((actual - expected).abs() < 1e-2, expected, actual), expected


@proves("dgl_5476")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, dist = made(module.Graphormer, C, H), tokens(), torch.randint(-1, 4, (B, T, T))
    sizes = REAL.sum(-1)
    alone = [
        m(row[None, :n], pairs[None, :n, :n], n[None])[0]
        for row, pairs, n in zip(x, dist, sizes, strict=True)
    ]
    return m(x, dist, sizes)[REAL], torch.cat(alone)


@proves("former_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SelfAttention, C, 2, mask=True), tokens()
    context = attended(m.toqueries(x), m.tokeys(x), m.tovalues(x), CAUSAL, count=2)
    return m(x), m.unifyheads(context)


@proves("transformers_26792")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MistralAttention, C, H, 3), tokens()
    context = attended(m.q_proj(x), m.k_proj(x), m.v_proj(x), CAUSAL.triu(-2))
    return m(x)[0], m.o_proj(context)


@proves("resshift_81")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.SwinTransformerBlock, C, 2), tokens(B, C, 8, 8)
    # Pixels see each other if they share a shifted window, and the shift did not carry one of them around the border.
    line = torch.arange(8)
    window = (line - 2) % 8 // 4
    near = (window[:, None] == window) & ((line[:, None] < 2) == (line < 2))
    keep = (near[:, None, :, None] & near[None, :, None, :]).reshape(64, 64)
    q, k, v = m.attn.qkv(m.norm1(image.flatten(2).transpose(1, 2))).chunk(3, -1)
    out = m.attn.proj(attended(q, k, v, keep, count=2))
    return m(image), image + out.transpose(1, 2).view_as(image)


@proves("flash_linear_attention_1266")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, real = made(module.LinearAttention, C, H), tokens(), REAL.flip(1)
    alone = [m(row[None, keep])[0] for row, keep in zip(x, real, strict=True)]
    return m(x, real.long())[real], torch.cat(alone)


@proves("darts_3053")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module._TFTModule, 4, 3, C, H)
    m(tokens(B, 7, C))
    return torch.tensor(float(m.to("meta").attention_mask.is_meta)), torch.tensor(1.0)


# --- dropout -----------------------------------------------------------------------------------------


@proves("torchtune_1803")
def _(module: Any) -> tuple[Tensor, Tensor]:
    definition = module.MultiHeadAttention
    m = made(definition, embed_dim=C, num_heads=H, num_kv_heads=2, head_dim=5, attn_dropout=0.5)
    x = tokens()
    q, k, v = heads(m.q_proj(x)), heads(m.k_proj(x), 2), heads(m.v_proj(x), 2)
    context = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return m(x), m.output_proj(merged(context))


@proves("saint_12")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Transformer, C, 1, H, 5, attn_dropout=0.5).train(), tokens()
    attention = m.layers[0].fn.fn
    q, k, v = (heads(t) for t in attention.to_qkv(m.layers[0].norm(x)).chunk(3, -1))
    torch.manual_seed(1)
    actual = m(x)
    torch.manual_seed(1)
    context = F.dropout((q @ k.mT / 5**0.5).softmax(-1), 0.5) @ v
    # The residual connection is inside the norm.
    return actual, attention.to_out(merged(context)) + m.layers[0].norm(x)


# --- positions and caches ----------------------------------------------------------------------------


@proves("conformer_55")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, frames = made(module.MultiHeadedSelfAttentionModule, C, H), tokens()
    x, a = m.layer_norm(frames), m.attention
    q = a.query_proj(x).unflatten(-1, (H, -1))
    distances = torch.arange(T)[:, None] - torch.arange(T)
    pos = a.pos_proj(m.positional_encoding(distances.flatten()).double()).view(T, T, H, -1)
    scores = (q + a.u_bias).transpose(1, 2) @ heads(a.key_proj(x)).mT
    scores = scores + torch.einsum("bihd,ijhd->bhij", q + a.v_bias, pos)
    return m(frames), a.out_proj(merged((scores / 2.0).softmax(-1) @ heads(a.value_proj(x))))


@proves("open_lm_4")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.CustomAttn, C, H), tokens()
    q, k, v = (heads(part) for part in m.in_proj(x).chunk(3, -1))
    context = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
    return m(x), m.out_proj(merged(context))


@proves("vjepa2_15")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.RoPEAttention, 28, 2, grid_size=2), tokens(B, 8, 28)
    axes = (torch.arange(8) // 4, torch.arange(8) // 2 % 2, torch.arange(8) % 2)
    angles = [torch.outer(a.double(), 10000.0 ** -(torch.arange(2) / 2).double()) for a in axes]
    turns = torch.polar(torch.ones(8, 6).double(), torch.cat(angles, -1))
    turns = torch.cat([turns, torch.ones(8, 1)], -1)
    q, k, v = (heads(part, 2) for part in m.qkv(x).chunk(3, -1))
    q, k = (
        torch.view_as_real(torch.view_as_complex(t.unflatten(-1, (-1, 2))) * turns).flatten(-2)
        for t in (q, k)
    )
    return m(x), m.proj(merged(F.scaled_dot_product_attention(q, k, v)))


@proves("lag_llama_81")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.CausalSelfAttention, module.LTSMConfig(n_embd_per_head=4)), tokens()
    steps = [m(part, use_kv_cache=True) for part in x.split([3, 1, 1, 1], dim=1)]
    return torch.cat(steps, 1), m(x, use_kv_cache=False)


@proves("tiny_llm_17")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, cache = made(module.MultiHeadAttention, C, H), tokens(), module.KVCache()
    return torch.cat([m(part, cache) for part in x.split([4, 1, 1], dim=1)], 1), m(x)


@proves("transformer_lens_777")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H, 4), tokens()
    return in_steps(m, x), m(x)[0]


@proves("transformers_48028")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, real = made(module.WhisperDecoder, C, H), tokens(), REAL.flip(1)
    alone = [m(row[None, keep])[0] for row, keep in zip(x, real, strict=True)]
    return m(x, real.long())[real], torch.cat(alone)


@proves("music_transformer_13")
def _(module: Any) -> tuple[Tensor, Tensor]:
    saved, loaded = (made(module.RelativeGlobalAttention, H, C, 8) for _ in range(2))
    loaded.load_state_dict(saved.state_dict())
    inputs = [tokens(), tokens(), tokens()]
    return loaded(inputs)[0], saved(inputs)[0]


# --- what is used, and failures ------------------------------------------------------------------------


@proves("re_net_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, entities, relations = made(module.AttnAggregator, C, 0.1, 2), tokens(5, C), tokens(3, C)
    pair, neighbors = torch.cat([entities[3], relations[0]]), [[1, 2, 4], [0, 3]]
    steps = []
    for chosen in neighbors:
        asked = torch.cat([entities[chosen], pair.expand(len(chosen), -1)], -1)
        weights = (m.attn_s(asked).tanh() @ m.v_s).softmax(0)
        steps.append(torch.cat([weights.T @ entities[chosen], pair[None]], -1))
    actual = m([neighbors], torch.tensor([3]), torch.tensor([0]), entities, relations)
    return actual[0], torch.cat(steps)


@proves("motionformer_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TrajectoryAttention, C, H), tokens(B, 7, C)
    q, k, v = (heads(part) for part in m.qkv(x).chunk(3, -1))
    first = F.scaled_dot_product_attention(q[:, :, :1], k, v)
    frames = [
        merged(F.scaled_dot_product_attention(q[:, :, 1:], k[:, :, s], v[:, :, s]))
        for s in (slice(1, 4), slice(4, 7))
    ]
    own = torch.cat([frames[0][:, :3], frames[1][:, 3:]], 1)
    k2, v2 = m.proj_kv(torch.stack(frames, 2)).flatten(0, 1).chunk(2, -1)
    context = attended(m.proj_q(own).reshape(-1, 1, C), k2, v2).view(B, 6, C)
    return m(x, 3, 2), m.proj(torch.cat([merged(first), context], 1))


@proves("megavit_17")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H, 5), tokens()
    q, k, v = (heads(part) for part in m.to_qkv(m.norm(x)).chunk(3, -1))
    context = F.scaled_dot_product_attention(m.norm_a(q), m.norm_b(k), v)
    return m(x), m.to_out(merged(context))


@proves("x_transformers_165")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, 5, H, sparse_topk=2), tokens()
    scores = heads(m.to_q(x)) @ heads(m.to_k(x)).mT
    kept = torch.zeros_like(scores).scatter(-1, scores.topk(2).indices, 1.0) > 0
    weights = (scores / 5**0.5).masked_fill(~kept, -torch.inf).softmax(-1)
    return m(x), m.to_out(merged(weights @ heads(m.to_v(x))))


@proves("olmo_521")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.OLMoSequentialBlock, module.ModelConfig(C, H)), tokens()
    q, k, v = m.att_proj(m.attn_norm(x)).chunk(3, -1)
    return m(x), x + m.attn_out(attended(m.q_norm(q), m.k_norm(k), v, CAUSAL))
