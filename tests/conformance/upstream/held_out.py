"""The held-out bugs of public projects, with proofs: they were re-created without running the check or reading it.

They guide no change of it. Once a bug guides a change, it is moved to the known ones.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from upstream.cases import Case, edges, sizes
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


def _atoms() -> tuple[Any, ...]:
    """Return the embeddings of the atoms of two structures, and which structure they belong to."""
    return torch.randn(11, 16), torch.randn(11, 16), torch.tensor([0] * 6 + [1] * 5)


def _weather() -> tuple[Any, ...]:
    """Return two states of 8 × 16 cells."""
    return (torch.randn(2, 128, 32),)


def _chunks() -> tuple[Any, ...]:
    """Return frames as queries, keys and values, their distances, padding, and chunks of 4 frames."""
    x, chunk = torch.randn(2, 8, 32), torch.arange(8) // 4
    padding = torch.arange(8) >= torch.tensor([8, 6])[:, None]
    return x, x, x, torch.randn(1, 15, 32), padding, chunk[:, None] < chunk


def _molecules() -> tuple[Any, ...]:
    """Return the atoms of two molecules, and where they are padded."""
    return torch.randn(2, 9, 24), torch.arange(9) >= torch.tensor([9, 6])[:, None]


def _clouds() -> tuple[Any, ...]:
    """Return the points of two sub-clouds, and how they are pooled."""
    pools = torch.tensor([[0, 1, 2], [3, 4, 13], [5, 6, 7], [8, 9, 10], [11, 12, 13]])
    lengths = {
        "stacked_length_in": torch.tensor([8, 5]),
        "stacked_length_out": torch.tensor([3, 2]),
    }
    return ({"features": torch.randn(13, 16), "pools": pools, **lengths},)


def _features() -> tuple[Any, ...]:
    """Return the features of two images."""
    return torch.randn(2, 9, 32), torch.randn(2, 6, 32)


def _sources() -> tuple[Any, ...]:
    """Return the words of two targets, the states of two sources, and the lengths of the sources."""
    return torch.randn(2, 5, 32), torch.randn(2, 8, 32), torch.tensor([8, 5])


def _translations() -> tuple[Any, ...]:
    """Return the words of two targets and two sources, and where there are words."""
    words = torch.arange(7)
    target, source = words < torch.tensor([7, 4])[:, None], words < torch.tensor([5, 7])[:, None]
    return torch.randn(2, 7, 32), torch.randn(2, 7, 32), target, source


def _documents() -> tuple[Any, ...]:
    """Return two rows of packed documents, and the document of each token."""
    return torch.randn(2, 8, 32), torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2], [0, 1, 1, 1, 1, 1, 2, 2]])


def _decoder_inputs() -> tuple[Any, ...]:
    """Return tokens, the cosines and sines of their positions, and a causal mask."""
    angles = torch.outer(torch.arange(8), 10000.0 ** -(torch.arange(4) / 4)).repeat(1, 2)[None]
    mask = torch.ones(8, 8, dtype=torch.bool).tril()[None, None]
    return torch.randn(2, 8, 32), (angles.cos(), angles.sin()), mask


def _prompts() -> tuple[Any, ...]:
    """Return two prompts, the second one padded on the left."""
    return torch.randint(1, 40, (2, 8)), (torch.arange(8) >= torch.tensor([0, 3])[:, None]).long()


HELD_OUT: tuple[Case, ...] = (
    Case(
        "transunet_pytorch_4",
        "MultiHeadAttention",
        "mkara44/transunet_pytorch#4",
        "scale-wrong",
        options=sizes(embedding_dim=32, head_num=4),
    ),
    Case(
        "grapharna_10",
        "SequenceStructureModule",
        "mjustynaPhD/GraphaRNA#10",
        "mask-inverted",
        known_as=("batch-mixed",),
        options=sizes(dim=32),
        example=_atoms,
    ),
    Case(
        "vjepa2_160",
        "Block",
        "facebookresearch/vjepa2#160",
        "dropout-in-eval",
        options=sizes(dim=32, num_heads=4, drop=0.1),
    ),
    Case(
        "physicsnemo_1399",
        "Transformer2DBlock",
        "NVIDIA/physicsnemo#1399",
        "context-wrong",
        options=sizes(dim=32, num_heads=4, input_resolution=(8, 16), window_size=(4, 8)),
        example=_weather,
    ),
    Case(
        "pytorch_geometric_1354",
        "GATConv",
        "pyg-team/pytorch_geometric#1354",
        "attention-ignored",
        known_as=("weights-wrong",),
        options=sizes(in_channels=16, out_channels=8, heads=2),
        example=edges,
    ),
    Case(
        "espnet_4751",
        "RelPositionMultiHeadedAttention",
        "espnet/espnet#4751",
        "padding-leak",
        known_as=("mask-unused", "future-leak", "window-missing"),
        options=sizes(num_heads=4, embed_size=32),
        example=_chunks,
    ),
    Case(
        "gemma_392",
        "Attention",
        "google-deepmind/gemma#392",
        "cache-mismatch",
        known_as=("rotary-mismatch", "rotary-offset"),
        options={
            "causal": True,
            **sizes(num_heads=4, num_kv_heads=2, features=32, head_dim=8),
        },
    ),
    Case(
        "llms_from_scratch_rs_30",
        "CausalAttention",
        "nerdai/llms-from-scratch-rs#30",
        "softmax-wrong-dim",
        known_as=("rows-not-normalised", "future-leak"),
        options={"causal": True, **sizes(d_in=32, d_out=24)},
    ),
    Case(
        "molm_8",
        "Blip2Qformer",
        "lsh0520/3D-MoLM#8",
        "mask-inverted",
        known_as=("padding-leak",),
        options=sizes(),
        example=_molecules,
    ),
    Case(
        "mlxcel_679",
        "Attention",
        "lablup/mlxcel#679",
        "cache-mismatch",
        known_as=("nan-on-masked-rows", "output-not-finite"),
        options={
            "causal": True,
            "window": 4,
            **sizes(hidden_size=32, n_heads=4, n_kv_heads=2, sliding_window=4),
        },
    ),
    Case(
        "mprm_7",
        "SpatialAttentionBlock",
        "plusmultiply/mprm#7",
        "batch-mixed",
        options=sizes(feature_dim=16),
        example=_clouds,
    ),
    Case(
        "stable_audio_tools_141",
        "Attention",
        "Stability-AI/stable-audio-tools#141",
        "mask-fill-too-small",
        known_as=("rows-not-normalised", "mask-after-softmax", "padding-leak", "length-dependent"),
        options=sizes(features=32, head_features=8, num_heads=4),
    ),
    Case(
        "matchanything_26",
        "LocalFeatureTransformer",
        "zju3dv/MatchAnything#26",
        "context-wrong",
        options=sizes(d_model=32, nhead=4),
        example=_features,
    ),
    Case(
        "cntkx_10",
        "MultiHeadAttention",
        "delzac/cntkx#10",
        "scale-wrong",
        options=sizes(num_heads=4, model_dim=32),
    ),
    Case(
        "opennmt_272",
        "StdRNNDecoder",
        "OpenNMT/OpenNMT-py#272",
        "mask-unused",
        known_as=("padding-leak",),
        options=sizes(hidden_size=32),
        example=_sources,
    ),
    Case(
        "entrenar_310",
        "TransformerBlock",
        "paiml/entrenar#310",
        "future-leak",
        options={
            "causal": True,
            **sizes(hidden_size=32, num_heads=4, num_kv_heads=2, intermediate_size=48),
        },
    ),
    Case(
        "keras_io_1046",
        "TransformerDecoder",
        "keras-team/keras-io#1046",
        "mask-unused",
        known_as=("padding-leak",),
        options=sizes(embed_dim=32, latent_dim=48, num_heads=2),
        example=_translations,
    ),
    Case(
        "praxis_38",
        "PraxisAttention",
        "0-5788719150923125/praxis#38",
        "mask-unused",
        known_as=("batch-mixed",),
        options={"causal": True, **sizes()},
        example=_documents,
    ),
    Case(
        "transformers_41443",
        "Qwen3Attention",
        "huggingface/transformers#41443",
        "mask-fill-too-small",
        known_as=("mask-unused", "future-leak", "padding-leak"),
        options={
            "causal": True,
            **sizes(hidden_size=32, num_attention_heads=4, num_key_value_heads=2),
        },
        example=_decoder_inputs,
    ),
    Case(
        "transformer_lens_1610",
        "TransformerBridge",
        "TransformerLensOrg/TransformerLens#1610",
        "left-padding-positions",
        options={"causal": True, **sizes()},
        example=_prompts,
    ),
)


@proves("transunet_pytorch_4")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, C, H), tokens()
    q, k, v = m.qkv_layer(x).unflatten(-1, (C // H, 3, H)).permute(3, 0, 1, 4, 2).flatten(-2)
    return m(x), m.out_attention(attended(q, k, v))


@proves("grapharna_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SequenceStructureModule, C), tokens(7, C)
    alone = [m.transformer_encoder(one[None])[0] for one in x.split([4, 3])]
    batch = torch.tensor([0] * 4 + [1] * 3)
    return m(x[:, : C // 2], x[:, C // 2 :], batch), torch.cat(alone)


@proves("vjepa2_160")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Block, C, H, drop=0.1), tokens()
    q, k, v = m.attn.qkv(m.norm1(x)).chunk(3, -1)
    expected = x + m.attn.proj(attended(q, k, v))
    return m(x), expected + m.mlp(m.norm2(expected))


@proves("physicsnemo_1399")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.Transformer2DBlock, C, H, (4, 8), (2, 4))
    x = tokens(2, 32, C)
    lat, lon = (
        t.flatten() for t in torch.meshgrid(torch.arange(4), torch.arange(8), indexing="ij")
    )
    # Rows 1 and 2 share a window; rows 0 and 3 are alone. Columns wrap.
    row, column = (lat + 1) // 2, ((lon - 2) % 8) // 4
    keep = (row[:, None] == row) & (column[:, None] == column)
    cell = ((lat - 1) % 2) * 4 + (lon - 2) % 4
    q, k, v = (
        t.unflatten(-1, (H, -1)).transpose(1, 2) for t in m.attn.qkv(m.norm1(x)).chunk(3, -1)
    )
    scores = q @ k.mT / 2 + m.attn.earth_position_bias[:, cell][:, :, cell]
    context = scores.masked_fill(~keep, -torch.inf).softmax(-1) @ v
    return m(x), x + m.attn.proj(context.transpose(1, 2).flatten(2))


@proves("pytorch_geometric_1354")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, (nodes, ends) = made(module.GATConv, C, 8, 2), edges()
    nodes = nodes.double()
    x = m.lin(nodes).unflatten(-1, (2, 8))
    scores = (x * m.att_src).sum(-1)[None] + (x * m.att_dst).sum(-1)[:, None]
    keep = torch.eye(5, dtype=torch.bool)
    keep[ends[1], ends[0]] = True
    scores = F.leaky_relu(scores, 0.2).masked_fill(~keep[..., None], -torch.inf)
    return m(nodes, ends), torch.einsum("ijh,jhd->ihd", scores.softmax(1), x).flatten(1)


@proves("espnet_4751")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, distances = made(module.RelPositionMultiHeadedAttention, H, C), tokens(), tokens(1, 11, C)
    chunk, place = torch.arange(T) // 3, torch.arange(T)
    q, k, v = (heads(linear(x)) for linear in (m.linear_q, m.linear_k, m.linear_v))
    p = heads(m.linear_pos(distances))[:, :, T - 1 + place - place[:, None]]
    bias = torch.einsum("bhid,bhijd->bhij", q + m.pos_bias_v[:, None], p.expand(B, -1, -1, -1, -1))
    keep = REAL[:, None, None] & (chunk[:, None] >= chunk)
    bias = (bias / 2).masked_fill(~keep, -torch.inf)
    context = F.scaled_dot_product_attention(q + m.pos_bias_u[:, None], k, v, attn_mask=bias)
    actual = m(x, x, x, distances, ~REAL, chunk[:, None] < chunk)
    return actual, m.linear_out(merged(context))


def _gemma(m: Any, x: Tensor) -> Tensor:
    q, k, v = heads(m.q_einsum(x)), heads(m.k_einsum(x), 2), heads(m.v_einsum(x), 2)
    q, k, v = (t / (t.square().mean(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k, v))
    q, k = rotated(q * (1 + m.query_norm.scale)), rotated(k * (1 + m.key_norm.scale))
    context = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return m.attn_vec_einsum(merged(context))


@proves("gemma_392")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, H, 2, C, C // H), tokens()
    actual = torch.stack([m(x)[0], in_steps(m, x)])
    return actual, _gemma(m, x).expand_as(actual)


@proves("llms_from_scratch_rs_30")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.CausalAttention, C, 8), tokens()
    return m(x), attended(m.w_query(x), m.w_key(x), m.w_value(x), CAUSAL, count=1)


@proves("molm_8")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, atoms = made(module.Blip2Qformer), tokens(B, T, 24)
    former, x, keys = m.Qformer, m.query_tokens.expand(B, -1, -1), m.ln_graph(atoms)
    for a, seen, keep in ((former.attention, None, None), (former.crossattention, keys, REAL)):
        seen = x if seen is None else seen
        context = attended(a.query(x), a.key(seen), a.value(seen), keep)
        x = a.LayerNorm(a.dense(context) + x)
    x = former.LayerNorm(former.output_query(F.gelu(former.intermediate_query(x))) + x)
    return m(atoms, ~REAL), F.normalize(m.graph_proj(x), dim=-1)


@proves("mlxcel_679")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H, 2, 3), tokens()
    q, k, v = rotated(heads(m.q_proj(x))), rotated(heads(m.k_proj(x), 2)), heads(m.v_proj(x), 2)
    keep = CAUSAL.triu(-2)
    expected = m.o_proj(merged(F.scaled_dot_product_attention(q, k, v, keep, enable_gqa=True)))
    actual = torch.stack([m(x)[0], in_steps(m, x)])
    return actual, expected.expand_as(actual)


@proves("mprm_7")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, (inputs,) = made(module.SpatialAttentionBlock, C), _clouds()
    inputs["features"] = inputs["features"].double()
    x = m.unary(m.pool(inputs["features"], inputs["pools"]))
    keep = torch.arange(5) < 3
    keep = keep[:, None] == keep
    context = F.scaled_dot_product_attention(m.conv_b(x), m.conv_c(x), m.conv_d(x), keep)
    return m(inputs), x + m.gamma * context


@proves("stable_audio_tools_141")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, text = made(module.Attention, C, head_features=4, num_heads=H), tokens(), tokens()
    k, v = m.to_kv(m.norm_context(text)).chunk(2, -1)
    return m(x, text, REAL), m.attention.to_out(attended(m.to_q(m.norm(x)), k, v, REAL))


@proves("matchanything_26")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.LocalFeatureTransformer, C, H), tokens(), tokens(B, 4, C)
    alone, cross = m.layers
    a, b = alone(x, x), alone(y, y)
    return torch.cat(m(x, y), 1), torch.cat([cross(a, b), cross(b, a)], 1)


@proves("cntkx_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.MultiHeadAttention, H, C), tokens(), tokens()
    return m(x, y, y), m.multihead_linear(
        attended(m.query_linear(x), m.key_linear(y), m.value_linear(y))
    )


@proves("opennmt_272")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, source = made(module.StdRNNDecoder, C), tokens(), tokens()
    states = m.rnn(x)[0]
    query = m.attn.linear_in(states)
    keep = REAL[:, None, :]
    context = F.scaled_dot_product_attention(query, source, source, keep, scale=1.0)
    expected = m.attn.linear_out(torch.cat([context, states], -1)).tanh()
    return m(x, source, REAL.sum(-1))[0], expected


@proves("entrenar_310")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TransformerBlock, C, H, 2, 24), tokens()
    y = m.input_norm(x)
    q, k, v = rotated(heads(m.w_q(y))), rotated(heads(m.w_k(y), 2)), heads(m.w_v(y), 2)
    context = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    expected = x + m.w_o(merged(context))
    y = m.post_attn_norm(expected)
    return m(x), expected + m.w_down(F.silu(m.w_gate(y)) * m.w_up(y))


@proves("keras_io_1046")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, source = made(module.TransformerDecoder, C, 24, H), tokens(), tokens()
    first, second, words = m.attention_1, m.attention_2, REAL.flip(0)
    seen = (CAUSAL & words[:, None])[:, None]
    q, k, v = (heads(f(x)) for f in (first.query_dense, first.key_dense, first.value_dense))
    context = merged(F.scaled_dot_product_attention(q, k, v, attn_mask=seen))
    y = m.layernorm_1(x + first.output_dense(context))
    projected = second.query_dense(y), second.key_dense(source), second.value_dense(source)
    y = m.layernorm_2(y + second.output_dense(attended(*projected, REAL)))
    return m(x, source, words, REAL), m.layernorm_3(y + m.dense_proj(y))


@proves("praxis_38")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.PraxisAttention, module.AttentionConfig(C, H)), tokens()
    blocks = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 1, 1, 2, 2, 2], [0, 0, 0, 0, 0, 0]])
    keep = CAUSAL & (blocks[:, :, None] == blocks[:, None])
    place = torch.arange(T, dtype=torch.float64)
    slopes = 4.0 ** -torch.arange(1, H + 1, dtype=torch.float64)
    bias = -slopes[:, None, None] * (place[:, None] - place).abs()
    bias = bias.masked_fill(~keep[:, None], -torch.inf)
    q, k, v = heads(m.query(x)), heads(m.key(x), 2), heads(m.value(x), 2)
    context = F.scaled_dot_product_attention(q, k, v, bias, enable_gqa=True)
    return m(x, blocks), m.output(merged(context))


@proves("transformers_41443")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Qwen3Attention, C, H, 2), tokens()
    angles = torch.outer(torch.arange(T), torch.tensor([1.0, 0.01])).double().repeat(1, 2)[None]
    q, k = m.q_norm(heads(m.q_proj(x))), m.k_norm(heads(m.k_proj(x), 2))
    context = F.scaled_dot_product_attention(
        rotated(q), rotated(k), heads(m.v_proj(x), 2), is_causal=True, enable_gqa=True
    )
    return m(x, (angles.cos(), angles.sin()), CAUSAL[None, None])[0], m.o_proj(merged(context))


@proves("transformer_lens_1610")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, ids = made(module.TransformerBridge), torch.randint(40, (B, T))
    mask = REAL.flip(1)
    expected = [m(row[keep][None])[0] for row, keep in zip(ids, mask, strict=True)]
    return m(ids, mask.long())[mask], torch.cat(expected)
