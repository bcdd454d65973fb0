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


def _prompts() -> tuple[Any, ...]:
    """Return the patches of two images, their prompts, and where a prompt has words."""
    words = torch.arange(6) < torch.tensor([6, 4])[:, None]
    return torch.randn(2, 9, 32), torch.randn(2, 6, 32), words.long()


def _hyperedges() -> tuple[Any, ...]:
    """Return two series of 6 nodes, and the nodes of 3 hyperedges."""
    nodes, hyperedges = [0, 1, 2, 2, 3, 4, 0, 4, 5], [0, 0, 0, 1, 1, 1, 2, 2, 2]
    return torch.randn(2, 6, 16), torch.tensor([nodes, hyperedges])


def _frames() -> tuple[Any, ...]:
    """Return the patches of four images."""
    return (torch.randn(4, 9, 32),)


def _characters() -> tuple[Any, ...]:
    """Return the positions of the characters of two images, their patches, and the characters."""
    return torch.randn(2, 7, 32), torch.randn(2, 12, 32), torch.randn(2, 7, 32)


def _notes() -> tuple[Any, ...]:
    """Return the words of two notes, the second one padded with 0."""
    words = torch.arange(9) < torch.tensor([9, 6])[:, None]
    return (torch.randint(1, 50, (2, 9)) * words,)


def _histories() -> tuple[Any, ...]:
    """Return the histories of two users, and where there are interactions."""
    return torch.randn(2, 8, 32), (torch.arange(8) < torch.tensor([8, 5])[:, None])[:, None, None]


def _sequences() -> tuple[Any, ...]:
    """Return two noisy sequences of 16 bases, their time steps and cell types."""
    return torch.randn(2, 1, 4, 16), torch.rand(2), torch.tensor([1, 3])


HELD_OUT: tuple[Case, ...] = (
    Case(
        "simpletuner_904",
        "FluxTransformerBlock",
        "bghira/SimpleTuner#904",
        "padding-leak",
        known_as=("mask-unused", "mask-broadcast", "context-wrong"),
        options=sizes(dim=32, num_attention_heads=4, attention_head_dim=8),
        example=_prompts,
    ),
    Case(
        "ada_mshyper_7",
        "HypergraphConv",
        "shangzongjiang/Ada-MSHyper#7",
        "softmax-wrong-dim",
        known_as=("rows-not-normalised", "weights-wrong"),
        options=sizes(in_channels=16, out_channels=16),
        example=_hyperedges,
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
        "opentau_267",
        "SiglipVideoEncoder",
        "TensorAuto/OpenTau#267",
        "batch-mixed",
        options=sizes(embed_dim=32, num_heads=4, num_frames=4),
        example=_frames,
    ),
    Case(
        "cdistnet_pytorch_2",
        "MDCDP",
        "chibohe/CdistNet-pytorch#2",
        "mask-inverted",
        known_as=("future-leak",),
        options={"causal": True, **sizes(d_model=32, d_inner=48, n_head=4, d_k=8, d_v=8)},
        example=_characters,
    ),
    Case(
        "caml_mimic_13",
        "ConvAttnPool",
        "jamesmullenbach/caml-mimic#13",
        "padding-leak",
        known_as=("mask-unused", "length-dependent"),
        options=sizes(Y=5, vocab_size=50, kernel_size=3, num_filter_maps=16, embed_size=24),
        example=_notes,
    ),
    Case(
        "deepctr_494",
        "Transformer",
        "shenweichen/DeepCTR#494",
        "keys-values-swapped",
        known_as=("context-wrong", "weights-wrong"),
        options=sizes(embedding_size=32, att_embedding_size=8, head_num=4),
    ),
    Case(
        "rechorus_8",
        "TransformerLayer",
        "THUwangcy/ReChorus#8",
        "nan-on-masked-rows",
        known_as=("output-not-finite",),
        options=sizes(d_model=32, d_ff=48, n_heads=4),
        example=_histories,
    ),
    Case(
        "flash_mha_3",
        "FlashMHA",
        "kyegomez/FlashMHA#3",
        "context-wrong",
        known_as=("keys-values-swapped", "attention-ignored"),
        options=sizes(embed_dim=32, num_heads=4),
    ),
    Case(
        "dna_diffusion_235",
        "UNet",
        "pinellolab/DNA-Diffusion#235",
        "attention-ignored",
        known_as=("context-wrong", "projection-unused"),
        options=sizes(dim=16, seq_len=16),
        example=_sequences,
    ),
    Case(
        "mlx_lm_1673",
        "Attention",
        "ml-explore/mlx-lm#1673",
        "cache-mismatch",
        known_as=("cache-garbage-read",),
        options={
            "causal": True,
            **sizes(hidden_size=32, n_heads=4, n_kv_heads=2, attention_chunk_size=4),
        },
    ),
    Case(
        "parakeet_75",
        "MultiheadAttention",
        "PaddlePaddle/Parakeet#75",
        "dropout-misplaced",
        known_as=("dropout-rescale",),
        options=sizes(model_dim=32, num_heads=4, dropout=0.1),
    ),
)


@proves("simpletuner_904")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image, text = made(module.FluxTransformerBlock, C, H, C // H), tokens(B, 4, C), tokens()
    a, x, y = m.attn, m.norm1(image), m.norm1_context(text)
    q = torch.cat([a.norm_added_q(heads(a.add_q_proj(y))), a.norm_q(heads(a.to_q(x)))], 2)
    k = torch.cat([a.norm_added_k(heads(a.add_k_proj(y))), a.norm_k(heads(a.to_k(x)))], 2)
    v = torch.cat([heads(a.add_v_proj(y)), heads(a.to_v(x))], 2)
    keep = F.pad(REAL, (0, 4), value=True)[:, None, None]
    context = merged(F.scaled_dot_product_attention(q, k, v, attn_mask=keep))
    expected = [text + a.to_add_out(context[:, :T]), image + a.to_out[0](context[:, T:])]
    return torch.cat(m(image, text, REAL.long()), 1), torch.cat(expected, 1)


@proves("ada_mshyper_7")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, (nodes, index) = made(module.HypergraphConv, C, 8), _hyperedges()
    nodes = nodes.double()
    member = torch.zeros(6, 3, dtype=torch.float64)
    member[index[0], index[1]] = 1
    x = nodes @ m.weight
    of_node, of_edge = m.att[0].chunk(2)
    scores = (x @ of_node)[..., None] + (member.T @ x @ of_edge)[:, None]
    scores = F.leaky_relu(scores, 0.2).masked_fill(member == 0, -torch.inf)
    weights = scores.softmax(1)
    gathered = weights.mT @ x / member.sum(0)[:, None]
    return m(nodes, index), weights @ gathered / member.sum(1)[:, None]


@proves("generative_models_146")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.CrossAttention, C, num_attention_heads=H, num_head_channels=4)
    x, y = tokens(), tokens(B, 4, C)
    return m(x, y), m.to_out(attended(m.to_q(x), m.to_k(y), m.to_v(y)))


@proves("opentau_267")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, images, videos = (
        made(module.SiglipVideoEncoder, C, H, 3),
        tokens(6, 5, C),
        tokens(2, 3, 5, C),
    )
    layer = m.layers[0]

    def attention(x: Tensor, keep: Tensor | None = None) -> Tensor:
        a, y = layer.self_attn, layer.layer_norm1(x)
        return a.out_proj(attended(a.q_proj(y), a.k_proj(y), a.v_proj(y), keep))

    # One patch at a time: its frames in a row.
    past = torch.ones(1, 3, 3, dtype=torch.bool).tril()
    positions = layer._temporal_pe.double()
    seen = [
        torch.stack([attention((video[:, n] + positions)[None], past)[0] for n in range(5)], 1)
        for video in videos
    ]
    x = torch.cat([images, (videos + torch.stack(seen))[:, -1]])
    x = x + attention(x)
    expected = m.post_layernorm(x + layer.mlp(layer.layer_norm2(x)))
    return torch.cat([m(images), m(videos)]), expected


@proves("cdistnet_pytorch_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, places, patches, words = (
        made(module.MDCDP, C, 24, H, 4, 4),
        tokens(),
        tokens(B, 9, C),
        tokens(),
    )

    def unit(u: Any, x: Tensor, y: Tensor, keep: Tensor | None) -> Tensor:
        a = u.slf_attn
        x = a.layer_norm(a.fc(attended(a.w_qs(x), a.w_ks(y), a.w_vs(y), keep)) + x)
        return u.layer_norm(x + u.w_2(F.relu(u.w_1(x))))

    x = unit(m.sae, places, places, CAUSAL)
    seen, read = unit(m.cbi_v, x, patches, None), unit(m.cbi_s, x, words, CAUSAL)
    gate = (torch.cat([seen, read], -1) @ m.conv.weight[:, :, 0, 0].T).sigmoid()
    return m(places, patches, words), (1 - gate) * seen + gate * read


@proves("caml_mimic_13")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.ConvAttnPool, 5, 20, 3, 8, embed_size=12)
    notes, expected = torch.randint(1, 20, (B, T)) * REAL, []
    for note in notes:
        x = torch.tanh(m.conv(m.embed(note[note > 0]).T[None])).mT
        context = F.scaled_dot_product_attention(m.U.weight[None], x, x, scale=1.0)
        expected.append((m.final.weight * context).sum(-1) + m.final.bias)
    return m(notes), torch.cat(expected)


@proves("deepctr_494")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.Transformer, C, 4, H), tokens(), tokens()
    expected = x + attended(x @ m.W_Query, y @ m.W_key, y @ m.W_Value, REAL)
    return m(x, y, REAL.sum(-1)), expected + F.relu(expected @ m.fw1) @ m.fw2


@proves("rechorus_8")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TransformerLayer, C, 24, H), tokens()
    a, keep = m.masked_attn_head, torch.arange(T) < torch.tensor([T, 4, 0])[:, None]
    context = attended(a.q_linear(x), a.k_linear(x), a.v_linear(x), keep)
    context = torch.cat([context[:2], torch.zeros_like(context[2:])])
    y = m.layer_norm1(context + x)
    expected = m.layer_norm2(y + m.linear2(F.relu(m.linear1(y))))
    return m(x, keep[:, None, None]), expected


@proves("flash_mha_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, keys, values = made(module.FlashMHA, 32, H), *(tokens(B, n, 32) for n in (T, 4, 4))
    q, k, v = (m.Wqkv(t).chunk(3, -1)[i] for i, t in enumerate((x, keys, values)))
    return m(x, keys, values), m.out_proj(attended(q, k, v))


@proves("dna_diffusion_235")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.UNet, C, seq_len=8), tokens(2, 1, 4, 8)
    time, cells = torch.rand(2, dtype=torch.float64), torch.tensor([1, 3])
    t, r = m.time_mlp(time) + m.label_emb(cells), m.init_conv(x)
    y = m.final_conv(m.final_res_block(torch.cat([m.mid_block(r, t), r], 1), t))
    a, bases = m.cross_attn, m.norm_to_cross(y.flatten(1)).view(2, 4, 8)
    k, v = a.to_kv(t.view(2, 4, 8)).chunk(2, -1)
    context = a.to_out(F.scaled_dot_product_attention(a.to_q(bases), k, v))
    return m(x, time, cells), y + context[:, None]


@proves("mlx_lm_1673")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H, 2, 4), tokens()
    q, k = (rotated(t, interleaved=True) for t in (heads(m.q_proj(x)), heads(m.k_proj(x), 2)))
    chunk = torch.arange(T) // 4
    keep = CAUSAL & (chunk[:, None] == chunk)
    context = F.scaled_dot_product_attention(q, k, heads(m.v_proj(x), 2), keep, enable_gqa=True)
    alone, cache = [], None
    for t in range(T):
        part, cache = m(x[:, t : t + 1], cache)
        alone.append(part)
    actual = torch.stack([m(x)[0], in_steps(m, x), torch.cat(alone, 1)])
    return actual, m.o_proj(merged(context)).expand_as(actual)


@proves("parakeet_75")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, mask = made(module.MultiheadAttention, C, H, 0.5), tokens(), REAL[:, None].double()
    expected = m.affine_o(attended(m.affine_q(x), m.affine_k(x), m.affine_v(x), REAL))
    out, weights = m(x, x, x, mask)
    # In training, weights are dropped or doubled, and nothing else.
    trained = m.train()(x, x, x, mask)[1]
    return torch.cat([out.flatten(), trained.flatten()]), torch.cat(
        [expected.flatten(), (2 * weights * (trained != 0)).flatten()]
    )
