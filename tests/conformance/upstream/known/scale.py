"""Known bugs of the scale of the scores."""

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


def _residues() -> tuple[Any, ...]:
    """Return two proteins of 5 residues, their pairs, and the frames of the residues."""
    rotations = torch.linalg.qr(torch.randn(2, 5, 3, 3)).Q
    return torch.randn(2, 5, 16), torch.randn(2, 5, 5, 16), rotations, torch.randn(2, 5, 3)


def _tokens_first() -> tuple[Any, ...]:
    """Return 6 tokens of two images, tokens first."""
    return (torch.randn(6, 2, 32),)


def _cells() -> tuple[Any, ...]:
    """Return the states of 5 cells, and the drug that each was given."""
    return torch.randn(5, 16), F.one_hot(torch.tensor([0, 2, 1, 1, 0]), 3).float()


CASES = (
    Case(
        "machine_learning_13",
        "MultiHeadAttention",
        "ethen8181/machine-learning#13",
        "scale-missing",
    ),
    Case(
        "timm_2388",
        "MultiQueryAttentionV2",
        "huggingface/pytorch-image-models#2388",
        "scale-missing",
        options=sizes(dim=16, num_heads=4, key_dim=8, value_dim=8),
    ),
    Case(
        "vit_pytorch_65",
        "Attention",
        "lucidrains/vit-pytorch#65",
        "scale-wrong",
        options=sizes(dim=32, heads=4, dim_head=16),
    ),
    Case(
        "ng_video_lecture_6",
        "MultiHeadAttention",
        "karpathy/ng-video-lecture#6",
        "scale-wrong",
        options={"causal": True, **sizes(num_heads=4, head_size=8)},
    ),
    Case("vit_1", "MultiHeadAttention", "FrancescoSaverioZuppichini/ViT#1", "scale-wrong"),
    Case(
        "perceiver_io_9",
        "MultiHeadAttention",
        "esceptico/perceiver-io#9",
        "scale-wrong",
        options=sizes(kv_dim=20, q_dim=32),
    ),
    Case(
        "machine_learning_collection_159",
        "SelfAttention",
        "aladdinpersson/Machine-Learning-Collection#159",
        "scale-wrong",
    ),
    Case(
        "transformers_38290",
        "OPTAttention",
        "huggingface/transformers#38290",
        "scale-wrong",
        options={"causal": True},
    ),
    Case(
        "vit_cifar_11",
        "MultiHeadSelfAttention",
        "omihub777/ViT-CIFAR#11",
        "scale-wrong",
        options=sizes(feats=32, head=4),
    ),
    Case(
        "mlc_llm_3426",
        "BertSelfAttention",
        "mlc-ai/mlc-llm#3426",
        "scale-missing",
        known_as=("scale-wrong",),
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
        "train_llm_from_scratch_3",
        "MultiHeadAttention",
        "FareedKhan-dev/train-llm-from-scratch#3",
        "scale-wrong",
        options={"causal": True, **sizes(n_head=4, n_embed=32, context_length=16)},
    ),
    Case(
        "tt_metal_56789",
        "ResidualAttentionBlock",
        "tenstorrent/tt-metal#56789",
        "scale-wrong",
        options=sizes(hidden=32, num_heads=4),
        example=_tokens_first,
    ),
    Case(
        "tiny_transformers_71",
        "CausalAttention",
        "PAIR-code/tiny-transformers#71",
        "scale-missing",
        known_as=("scale-wrong",),
        options={"causal": True},
    ),
    Case(
        "squeezeformer_1",
        "MultiHeadedSelfAttentionModule",
        "upskyy/Squeezeformer#1",
        "scale-wrong",
        options=sizes(d_model=32, num_heads=4),
    ),
    Case(
        "dl4proteins_12",
        "MultiHeadAttention",
        "Graylab/DL4Proteins-notebooks#12",
        "scale-wrong",
        options={"causal": True, **sizes(n_embd=32, num_heads=4, block_size=64)},
    ),
    Case(
        "attention_is_all_you_need_42",
        "MultiHeadAttention",
        "jadore801120/attention-is-all-you-need-pytorch#42",
        "scale-wrong",
        options=sizes(n_head=4, d_model=32, d_k=8, d_v=8),
    ),
    Case(
        "cellcap_35",
        "PerturbationResponse",
        "broadinstitute/CellCap#35",
        "scale-missing",
        known_as=("scale-wrong",),
        options=sizes(n_latent=16, n_drug=3, n_prog=6),
        example=_cells,
    ),
    Case(
        "transunet_pytorch_4",
        "MultiHeadAttention",
        "mkara44/transunet_pytorch#4",
        "scale-wrong",
        options=sizes(embedding_dim=32, head_num=4),
    ),
    Case(
        "cntkx_10",
        "MultiHeadAttention",
        "delzac/cntkx#10",
        "scale-wrong",
        options=sizes(num_heads=4, model_dim=32),
    ),
    Case(
        "generative_models_146",
        "CrossAttention",
        "Project-MONAI/GenerativeModels#146",
        "scale-missing",
        known_as=("scale-wrong",),
        options=sizes(query_dim=32, num_attention_heads=4, num_head_channels=8),
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
        "bert_language_understanding_9",
        "MultiHeadAttention",
        "brightmart/bert_language_understanding#9",
        "scale-wrong",
        options=sizes(d_model=32, d_k=8, d_v=8, h=4),
    ),
)


@proves("machine_learning_13")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.MultiHeadAttention, C, H), tokens(), tokens()
    expected = m.output(attended(m.query(x), m.key(y), m.value(y), REAL))
    return m(x, y, y, REAL[:, None, None]), expected


@proves("timm_2388")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.MultiQueryAttentionV2, C, num_heads=H, key_dim=9), tokens(B, C, 3, 4)
    x = image.flatten(2).transpose(1, 2)
    q = torch.einsum("bnd,hkd->bhnk", x, m.query_proj)
    k, v = ((x @ weight)[:, None] for weight in (m.key_proj, m.value_proj))
    context = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    return m(image), torch.einsum("bhnv,dhv->bdn", context, m.out_proj).view_as(image)


@proves("vit_pytorch_65")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, heads=H, dim_head=9), tokens()
    return m(x), m.to_out(attended(*m.to_qkv(x).chunk(3, -1)))


@proves("ng_video_lecture_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, H, 8), tokens(B, T, 32)
    each = [
        F.scaled_dot_product_attention(h.query(x), h.key(x), h.value(x), CAUSAL) for h in m.heads
    ]
    return m(x), m.proj(torch.cat(each, -1))


@proves("vit_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, C, H), tokens()
    q, k, v = m.qkv(x).unflatten(-1, (-1, 3)).unbind(-1)
    return m(x), m.projection(attended(q, k, v))


@proves("perceiver_io_9")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.MultiHeadAttention, 20, C), tokens(), tokens(B, T, 20)
    return m(y, x, REAL), m.projection(attended(m.q(x), m.k(y), m.v(y), REAL))


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


@proves("train_llm_from_scratch_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, H, C, 8), tokens()
    parts = [attended(h.query(x), h.key(x), h.value(x), CAUSAL, 1) for h in m.heads]
    return m(x), m.proj(torch.cat(parts, -1))


@proves("tt_metal_56789")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.ResidualAttentionBlock, 24, H), tokens(T, B, 24)
    a, y = m.attn, m.ln_1(x).transpose(0, 1)
    context = a.out_proj(attended(a.q_proj(y), a.k_proj(y), a.v_proj(y))).transpose(0, 1)
    return m(x), x + context + m.mlp(m.ln_2(x + context))


@proves("tiny_transformers_71")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.CausalAttention, module.AttnConfig(d_model=C, d_head=5)), tokens()
    q, k, v = (x[:, None] @ w for w in (m.w_q, m.w_k, m.w_v))
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=CAUSAL)
    return m(x), (context @ m.w_o).sum(1)


@proves("squeezeformer_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadedSelfAttentionModule, C, H), tokens()
    a = m.attention
    q, k, v = (heads(project(x)) for project in (a.query_proj, a.key_proj, a.value_proj))
    distances = torch.arange(T)[:, None] - torch.arange(T)
    angles = distances[..., None] * m.positional_encoding.div_term
    places = a.pos_proj(torch.stack([angles.sin(), angles.cos()], -1).flatten(-2))
    scores = (q + a.u_bias[:, None]) @ k.mT
    scores = scores + torch.einsum(
        "bhid,ijhd->bhij", q + a.v_bias[:, None], places.unflatten(-1, (H, -1))
    )
    return m(x, ~REAL[:, None]), a.out_proj(
        merged((scores / 2).masked_fill(~REAL[:, None, None], -torch.inf).softmax(-1) @ v)
    )


@proves("dl4proteins_12")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, C, H, T), tokens()
    context = [
        F.scaled_dot_product_attention(h.query(x), h.key(x), h.value(x), is_causal=True)
        for h in m.heads
    ]
    return m(x), m.proj(torch.cat(context, -1))


@proves("attention_is_all_you_need_42")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, H, C, 4, 4), tokens()
    hidden = ~REAL[:, None].expand(B, T, T)
    q, k, v = (torch.einsum("btc,hcd->bhtd", x, w) for w in (m.w_qs, m.w_ks, m.w_vs))
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=~hidden[:, None])
    return m(x, x, x, hidden)[0], m.layer_norm(m.proj(merged(context)) + x)


@proves("cellcap_35")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, z, drugs = made(module.PerturbationResponse, C, 3, 7), tokens(5, C), [0, 2, 1, 1, 0]
    p = F.one_hot(torch.tensor(drugs), 3).double()
    expected = [
        cell + ((m.H_key[drug] @ cell / C**0.5).softmax(0) * F.softplus(m.H_pq[drug])) @ m.w_qk
        for cell, drug in zip(z, drugs, strict=True)
    ]
    return m(z, p), torch.stack(expected)


@proves("transunet_pytorch_4")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, C, H), tokens()
    q, k, v = m.qkv_layer(x).unflatten(-1, (C // H, 3, H)).permute(3, 0, 1, 4, 2).flatten(-2)
    return m(x), m.out_attention(attended(q, k, v))


@proves("cntkx_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.MultiHeadAttention, H, C), tokens(), tokens()
    return m(x, y, y), m.multihead_linear(
        attended(m.query_linear(x), m.key_linear(y), m.value_linear(y))
    )


@proves("generative_models_146")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.CrossAttention, C, num_attention_heads=H, num_head_channels=4)
    x, y = tokens(), tokens(B, 4, C)
    return m(x, y), m.to_out(attended(m.to_q(x), m.to_k(y), m.to_v(y)))


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


@proves("bert_language_understanding_9")
def _(module: Any) -> tuple[Tensor, Tensor]:
    actual, expected = [], []
    for kind in ("encoder", "decoder"):
        m, x = made(module.MultiHeadAttention, C, 4, 5, H, type=kind), tokens()
        q, k, v = m.Q_projection(x), m.K_projection(x), m.V_projection(x)
        keep = REAL[:, None, None].expand(B, 1, T, T)
        keep = keep.tril() if kind == "decoder" else keep
        context = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), keep)
        actual.append(m(x, x, x, REAL.long()))
        expected.append(m.output_projection(merged(context)))
    return torch.cat(actual), torch.cat(expected)
