"""Known bugs of padded batches."""

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
    made,
    merged,
    proves,
    rotated,
    tokens,
)


def _distances() -> tuple[Any, ...]:
    """Return two graphs of up to 5 nodes, with the distances of the nodes of each."""
    return torch.randn(2, 5, 16), torch.randint(-1, 4, (2, 5, 5)), torch.tensor([5, 3])


def _agents_and_roads() -> tuple[Any, ...]:
    """Return 5 steps of two agents, and 4 roads of 3 points around the first; the second has no road near it."""
    roads = torch.randn(2, 4, 3, 3)
    roads[..., 2] = 1.0
    roads[0, 3] = roads[1] = 0.0
    return torch.randn(2, 5, 16), roads


def _memories() -> tuple[Any, ...]:
    """Return 4 memories of 3 words for each of two questions; the second question has two memories only."""
    memories = torch.randint(1, 20, (2, 4, 3))
    memories[1, 2:] = 0
    return memories, torch.randint(1, 20, (2, 5))


def _padded_prompts() -> tuple[Any, ...]:
    """Return two prompts of 6 tokens, and where the second is padded, on the left."""
    return torch.randn(2, 6, 16), torch.arange(6) < torch.tensor([[0], [2]])


def _headlines() -> tuple[Any, ...]:
    """Return the words of two headlines, the second padded with zeros."""
    words = torch.randint(1, 20, (2, 7))
    words[1, 4:] = 0
    return (words,)


def _images_and_questions() -> tuple[Any, ...]:
    """Return two feature maps, two questions of up to 6 words, and the numbers of words."""
    return torch.randn(2, 4, 3, 3), torch.randint(1, 20, (2, 6)), torch.tensor([6, 4])


def _histories() -> tuple[Any, ...]:
    """Return two histories of up to 6 items, and the numbers of items."""
    items = torch.randint(1, 20, (2, 6))
    items[1, 4:] = 0
    return items, torch.tensor([6, 4])


def _scene() -> tuple[Any, ...]:
    """Return 4 trajectories, the condition, 6 tokens of a scene that has only 4, and which neighbors are missing."""
    scene = torch.randn(2, 6, 32)
    scene[:, 4:] = 0
    missing = torch.tensor([[False, False, True], [False, True, True]])
    return torch.randn(2, 4, 32), torch.randn(2, 32), scene, missing


def _utterances() -> tuple[Any, ...]:
    """Return three padded utterances and their lengths."""
    return torch.randn(3, 6, 16), [6, 4, 3]


def _prompts() -> tuple[Any, ...]:
    """Return two prompts, of which the shorter is padded on the left, and where they are no padding."""
    return torch.randint(1, 50, (2, 7)), torch.tensor([[1] * 7, [0] * 3 + [1] * 4])


LENGTHS = REAL.sum(1).tolist()


def _chunks() -> tuple[Any, ...]:
    """Return frames as queries, keys and values, their distances, padding, and chunks of 4 frames."""
    x, chunk = torch.randn(2, 8, 32), torch.arange(8) // 4
    padding = torch.arange(8) >= torch.tensor([8, 6])[:, None]
    return x, x, x, torch.randn(1, 15, 32), padding, chunk[:, None] < chunk


def _left_padded_prompts() -> tuple[Any, ...]:
    """Return two prompts, the second one padded on the left."""
    return torch.randint(1, 40, (2, 8)), (torch.arange(8) >= torch.tensor([0, 3])[:, None]).long()


def _prompted_patches() -> tuple[Any, ...]:
    """Return the patches of two images, their prompts, and where a prompt has words."""
    words = torch.arange(6) < torch.tensor([6, 4])[:, None]
    return torch.randn(2, 9, 32), torch.randn(2, 6, 32), words.long()


def _notes() -> tuple[Any, ...]:
    """Return the words of two notes, the second one padded with 0."""
    words = torch.arange(9) < torch.tensor([9, 6])[:, None]
    return (torch.randint(1, 50, (2, 9)) * words,)


def _interactions() -> tuple[Any, ...]:
    """Return the histories of two users, and where there are interactions."""
    return torch.randn(2, 8, 32), (torch.arange(8) < torch.tensor([8, 5])[:, None])[:, None, None]


def _sentences() -> tuple[Any, ...]:
    """Return the words of two sentences, the second one padded with 0."""
    words = torch.arange(9) < torch.tensor([9, 6])[:, None]
    return (torch.randint(1, 50, (2, 9)) * words,)


def _left_padded_histories() -> tuple[Any, ...]:
    """Return the items that two users have seen, the second history padded with 0 at the left."""
    seen = torch.arange(8) >= torch.tensor([0, 3])[:, None]
    return (torch.randint(1, 51, (2, 8)) * seen,)


def _padded_utterances() -> tuple[Any, ...]:
    """Return the features of two utterances, and their numbers of frames."""
    return torch.randn(2, 24, 20), torch.tensor([24, 15])


CASES = (
    Case(
        "flash_linear_attention_1266",
        "LinearAttention",
        "fla-org/flash-linear-attention#1266",
        "padding-leak",
        options={"causal": True},
    ),
    Case(
        "dgl_5476",
        "Graphormer",
        "dmlc/dgl#5476",
        "nan-on-masked-rows",
        known_as=("output-not-finite",),
        options=sizes(feat_size=16, num_heads=4),
        example=_distances,
    ),
    Case(
        "transformers_29583",
        "GPT2Attention",
        "huggingface/transformers#29583",
        "left-padding-positions",
        options={"causal": True},
    ),
    Case(
        "transformers_48028",
        "WhisperDecoder",
        "huggingface/transformers#48028",
        "left-padding-positions",
        options={"causal": True},
    ),
    Case(
        "unitraj_6",
        "MapAwareDecoderLayer",
        "vita-epfl/UniTraj#6",
        "nan-on-masked-rows",
        known_as=("output-not-finite",),
        options=sizes(d_k=16),
        example=_agents_and_roads,
    ),
    Case(
        "parlai_1649",
        "MemNN",
        "facebookresearch/ParlAI#1649",
        "padding-leak",
        known_as=("mask-unused",),
        options=sizes(num_features=20, embedding_size=16),
        example=_memories,
    ),
    Case(
        "opennmt_2532",
        "MultiHeadedAttention",
        "OpenNMT/OpenNMT-py#2532",
        "padding-leak",
        known_as=("cache-mismatch", "mask-unused"),
        options={"causal": True, **sizes(head_count=4, model_dim=16)},
        example=_padded_prompts,
    ),
    Case(
        "mosaicml_examples_257",
        "GPTAttention",
        "mosaicml/examples#257",
        "left-padding-positions",
        known_as=("cache-mismatch",),
        options={"causal": True, **sizes(d_model=32, n_heads=4)},
    ),
    Case(
        "poprox_recommender_177",
        "NewsEncoder",
        "CCRI-POPROX/poprox-recommender#177",
        "padding-leak",
        known_as=("mask-unused",),
        options=sizes(
            vocab_size=20, hidden_size=16, num_attention_heads=4, additive_attn_hidden_dim=8
        ),
        example=_headlines,
    ),
    Case(
        "mac_network_7",
        "MACNetwork",
        "rosinality/mac-network-pytorch#7",
        "padding-leak",
        known_as=("mask-unused",),
        options=sizes(n_vocab=20, dim=8, embed_hidden=12, in_channels=4),
        example=_images_and_questions,
    ),
    Case(
        "burn_4697",
        "CausalSelfAttention",
        "tracel-ai/burn#4697",
        "nan-on-masked-rows",
        known_as=("output-not-finite",),
        options={"causal": True},
    ),
    Case(
        "light_sans_3",
        "LightSANs",
        "BELIEVEfxy/LightSANs#3",
        "padding-leak",
        known_as=("mask-unused",),
        options=sizes(n_items=20, hidden_size=32, n_heads=4, max_seq_length=8),
        example=_histories,
    ),
    Case(
        "fast_transformers_37",
        "LocalAttentionLayer",
        "idiap/fast-transformers#37",
        "nan-on-masked-rows",
        known_as=("output-not-finite",),
        options=sizes(d_model=32, n_heads=4, local_context=3),
    ),
    Case(
        "axolotl_3735",
        "DiffusionAttention",
        "axolotl-ai-cloud/axolotl#3735",
        "padding-leak",
        known_as=("mask-unused",),
        options=sizes(hidden_size=32, num_attention_heads=4),
    ),
    Case(
        "diffusion_planner_156",
        "DiT",
        "tier4/Diffusion-Planner#156",
        "padding-leak",
        known_as=("mask-unused",),
        options=sizes(depth=1, hidden_dim=32, heads=4),
        example=_scene,
    ),
    Case(
        "stack_propagation_slu_5",
        "SelfAttention",
        "LeePleased/StackPropagation-SLU#5",
        "padding-leak",
        known_as=("mask-unused",),
        options=sizes(input_dim=16, hidden_dim=24, output_dim=12, dropout_rate=0.1),
        example=_utterances,
    ),
    Case(
        "nnsight_673",
        "LanguageModel",
        "ndif-team/nnsight#673",
        "left-padding-positions",
        options={"causal": True, **sizes()},
        example=_prompts,
    ),
    Case(
        "rten_1321",
        "GroupQueryAttention",
        "robertknight/rten#1321",
        "nan-on-masked-rows",
        known_as=("output-not-finite",),
        options={"causal": True, **sizes(hidden_size=32, num_heads=4, kv_num_heads=2)},
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
        "transformer_lens_1610",
        "TransformerBridge",
        "TransformerLensOrg/TransformerLens#1610",
        "left-padding-positions",
        options={"causal": True, **sizes()},
        example=_left_padded_prompts,
    ),
    Case(
        "simpletuner_904",
        "FluxTransformerBlock",
        "bghira/SimpleTuner#904",
        "padding-leak",
        known_as=("mask-unused", "mask-broadcast", "context-wrong"),
        options=sizes(dim=32, num_attention_heads=4, attention_head_dim=8),
        example=_prompted_patches,
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
        "rechorus_8",
        "TransformerLayer",
        "THUwangcy/ReChorus#8",
        "nan-on-masked-rows",
        known_as=("output-not-finite",),
        options=sizes(d_model=32, d_ff=48, n_heads=4),
        example=_interactions,
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
        "sasrec_36",
        "SASRec",
        "pmixer/SASRec.pytorch#36",
        "padding-leak",
        known_as=("mask-unused", "length-dependent"),
        options={"causal": True, **sizes(item_num=50, hidden_units=32, num_heads=2)},
        example=_left_padded_histories,
    ),
    Case(
        "icefall_767",
        "Zipformer",
        "k2-fsa/icefall#767",
        "padding-leak",
        known_as=("mask-unused", "length-dependent"),
        options=sizes(num_features=20, d_model=32, nhead=4),
    ),
    Case(
        "espnet_6633",
        "TransformerEncoder",
        "espnet/espnet#6633",
        "padding-leak",
        known_as=("length-dependent",),
        options=sizes(input_size=20, output_size=32, attention_heads=4),
        example=_padded_utterances,
    ),
    Case(
        "ferritin_199",
        "ESM2",
        "ferritin-bio/ferritin#199",
        "padding-leak",
        known_as=("mask-unused", "length-dependent"),
    ),
    Case(
        "recommenders_1136",
        "TitleEncoder",
        "recommenders-team/recommenders#1136",
        "padding-leak",
        known_as=("mask-unused",),
        options=sizes(word_size=50, word_emb_dim=16, filter_num=32, attention_hidden_dim=16),
    ),
    Case(
        "trax_820",
        "SelfAttention",
        "google/trax#820",
        "padding-leak",
        known_as=("mask-unused",),
        options=sizes(d_model=32, n_heads=4, d_qk=8, d_v=8, masked=True),
    ),
)


@proves("flash_linear_attention_1266")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, real = made(module.LinearAttention, C, H), tokens(), REAL.flip(1)
    alone = [m(row[None, keep])[0] for row, keep in zip(x, real, strict=True)]
    return m(x, real.long())[real], torch.cat(alone)


@proves("dgl_5476")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, dist = made(module.Graphormer, C, H), tokens(), torch.randint(-1, 4, (B, T, T))
    sizes = REAL.sum(-1)
    alone = [
        m(row[None, :n], pairs[None, :n, :n], n[None])[0]
        for row, pairs, n in zip(x, dist, sizes, strict=True)
    ]
    return m(x, dist, sizes)[REAL], torch.cat(alone)


@proves("transformers_29583")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, real = made(module.GPT2Attention, C, H), tokens(), REAL.flip(1)
    rows = [m(row[None, keep])[0] for row, keep in zip(x, real, strict=True)]
    return m(x, real.long())[real], torch.cat(rows)


@proves("transformers_48028")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, real = made(module.WhisperDecoder, C, H), tokens(), REAL.flip(1)
    alone = [m(row[None, keep])[0] for row, keep in zip(x, real, strict=True)]
    return m(x, real.long())[real], torch.cat(alone)


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


@proves("parlai_1649")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, queries = made(module.MemNN, 20, C, hops=2), torch.randint(1, 20, (B, 5))
    memories = torch.randint(1, 20, (B, T, 3)) * REAL[..., None]
    alone = [
        m(row[None, real], query[None])
        for row, real, query in zip(memories, REAL, queries, strict=True)
    ]
    return m(memories, queries), torch.cat(alone)


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


@proves("poprox_recommender_177")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.NewsEncoder, 20, C, H, 5)
    words = torch.randint(1, 20, (B, T)) * REAL
    alone = [m(row[None, real]) for row, real in zip(words, REAL, strict=True)]
    return m(words), torch.cat(alone)


@proves("mac_network_7")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, maps = made(module.MACNetwork, 20, 5, 7, 3), tokens(B, 3, 2, 2)
    words, counts = torch.randint(1, 20, (B, T)), REAL.sum(1)
    alone = [m(maps[[i]], words[[i], : counts[i]], counts[[i]]) for i in range(B)]
    return m(maps, words, counts), torch.cat(alone)


@proves("burn_4697")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, real = made(module.CausalSelfAttention, C, H), tokens(), REAL.flip(1)
    q, k, v = (heads(project(x)) for project in (m.query, m.key, m.value))
    seen = CAUSAL & real[:, None, None]
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    context = torch.where(seen.any(-1, keepdim=True), context, 0.0)
    return m(x, ~real), m.output(merged(context))


@proves("light_sans_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, items, counts = made(module.LightSANs, 9, C, H), torch.randint(1, 9, (B, T)), REAL.sum(1)
    alone = [m(items[[i], : counts[i]], counts[[i]]) for i in range(B)]
    return m(items * REAL, counts), torch.cat(alone)


@proves("fast_transformers_37")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.LocalAttentionLayer, C, H, 3), tokens()
    actual, expected = m(x, REAL), torch.zeros_like(x)
    near = torch.ones(T, T, dtype=torch.bool).triu(-1).tril(1)
    q, k, v = (f(x) for f in (m.query_projection, m.key_projection, m.value_projection))
    for i, count in enumerate(REAL.sum(1)):
        parts = (heads(part[[i], :count]) for part in (q, k, v))
        context = F.scaled_dot_product_attention(*parts, attn_mask=near[:count, :count])
        expected[i, :count] = m.out_projection(merged(context))[0]
    # what there is at padding is free, but it must be a number
    return actual, torch.where(REAL[..., None], expected, actual.nan_to_num())


@proves("axolotl_3735")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.DiffusionAttention, C, H), tokens()
    context = attended(m.q_proj(x), m.k_proj(x), m.v_proj(x), REAL)
    return m(x, REAL.long()), m.o_proj(context)


@proves("diffusion_planner_156")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y, scene = made(module.DiT, 2, C, H), tokens(B, 4, C), tokens(B, C), tokens()
    missing = torch.zeros(B, 3, dtype=torch.bool)
    padded = F.pad(scene, (0, 0, 0, 2))
    return m(x, y, padded, missing), m(x, y, scene, missing)


@proves("stack_propagation_slu_5")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SelfAttention, C, 24, 12, 0.1), tokens()
    alone = [m(x[i : i + 1, :n], [n]) for i, n in enumerate(LENGTHS)]
    return m(x, LENGTHS), torch.cat(alone)


@proves("nnsight_673")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, ids, mask = made(module.LanguageModel), torch.randint(1, 50, (B, T)), REAL.flip(1).long()
    alone = [m(ids[i : i + 1, -n:])[0] for i, n in enumerate(LENGTHS)]
    return m(ids, mask)[mask.bool()], torch.cat(alone)


@proves("rten_1321")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, mask = made(module.GroupQueryAttention, C, H, 2), tokens(), REAL.flip(1)
    q, k, v = heads(m.query(x)), heads(m.key(x), 2), heads(m.value(x), 2)
    context = F.scaled_dot_product_attention(
        q, k, v, CAUSAL & mask[:, None, None], enable_gqa=True
    ).nan_to_num()
    return m(x, mask), m.out(merged(context * mask[:, None, :, None]))


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


@proves("transformer_lens_1610")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, ids = made(module.TransformerBridge), torch.randint(40, (B, T))
    mask = REAL.flip(1)
    expected = [m(row[keep][None])[0] for row, keep in zip(ids, mask, strict=True)]
    return m(ids, mask.long())[mask], torch.cat(expected)


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


@proves("caml_mimic_13")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.ConvAttnPool, 5, 20, 3, 8, embed_size=12)
    notes, expected = torch.randint(1, 20, (B, T)) * REAL, []
    for note in notes:
        x = torch.tanh(m.conv(m.embed(note[note > 0]).T[None])).mT
        context = F.scaled_dot_product_attention(m.U.weight[None], x, x, scale=1.0)
        expected.append((m.final.weight * context).sum(-1) + m.final.bias)
    return m(notes), torch.cat(expected)


@proves("rechorus_8")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TransformerLayer, C, 24, H), tokens()
    a, keep = m.masked_attn_head, torch.arange(T) < torch.tensor([T, 4, 0])[:, None]
    context = attended(a.q_linear(x), a.k_linear(x), a.v_linear(x), keep)
    context = torch.cat([context[:2], torch.zeros_like(context[2:])])
    y = m.layer_norm1(context + x)
    expected = m.layer_norm2(y + m.linear2(F.relu(m.linear1(y))))
    return m(x, keep[:, None, None]), expected


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


@proves("icefall_767")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.Zipformer, 10, C, H, 24, (1, 2), (1, 2), 8)
    lengths = torch.tensor([12, 9, 6])
    x = tokens(B, 12, 10)
    found, _ = m(x, lengths)
    # One utterance at a time, without padding.
    pairs = [
        (y[:n], m(row[None, :n], torch.tensor([n]))[0][0])
        for y, row, n in zip(found, x, lengths.tolist(), strict=True)
    ]
    return torch.cat([y for y, _ in pairs]), torch.cat([y for _, y in pairs])


@proves("espnet_6633")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.TransformerEncoder, 10, C, H, 24)
    x, lengths = tokens(B, 24, 10), torch.tensor([24, 17, 12])
    found, counts, _ = m(x, lengths)
    pairs = []
    # One utterance at a time, without padding and without a mask.
    for y, row, n in zip(found, x, lengths.tolist(), strict=True):
        z, _ = m.embed(row[None, :n], None)
        for layer in m.encoders:
            a, v = layer.self_attn, layer.norm1(z)
            z = z + a.linear_out(attended(a.linear_q(v), a.linear_k(v), a.linear_v(v)))
            z = z + layer.feed_forward(layer.norm2(z))
        pairs.append((y[: z.shape[1]], m.after_norm(z)[0]))
    actual = torch.cat([y for y, _ in pairs] + [counts[:, None].expand(B, C)])
    right = torch.tensor([y.shape[0] for _, y in pairs])[:, None].expand(B, C)
    return actual, torch.cat([y for _, y in pairs] + [right])


@proves("ferritin_199")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.ESM2, module.ESM2Config(hidden_size=C, intermediate_size=24))
    ids = torch.where(REAL, torch.randint(2, 32, (B, T)), 1)
    ids[:, 1] = 32
    scale = (1 - 0.12) / (1 - 1 / REAL.sum(-1).double())
    x = m.embeddings.word_embeddings(ids) * (ids != 32)[..., None] * REAL[..., None]
    x = x * scale[:, None, None]
    for layer in m.layers:
        a, y = layer.attention, layer.attention_norm(x)
        q, k = rotated(heads(a.query(y))), rotated(heads(a.key(y)))
        keep = REAL[:, None, None]
        context = F.scaled_dot_product_attention(q, k, heads(a.value(y)), keep)
        x = x + a.dense(merged(context))
        x = x + layer.output(F.gelu(layer.intermediate(layer.output_norm(x))))
    expected = m.lm_head(m.emb_layer_norm_after(x))[REAL]
    return torch.stack([m(ids)[REAL], m(ids, REAL.long())[REAL]]), expected.expand(
        2, *expected.shape
    )


@proves("recommenders_1136")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.TitleEncoder, 20, 12, C, attention_hidden_dim=8)
    ids, a, expected = torch.randint(1, 20, (B, T)) * REAL, m.attention, []
    # One title at a time, without padding.
    for title in ids:
        y = m.conv(m.embedding(title[title > 0])[None].mT).relu().mT
        scores = (y @ a.W + a.b).tanh() @ a.q
        expected.append((scores.softmax(1) * y).sum(1))
    found = m(ids)
    right = torch.cat(expected)
    # 1e-7 is added to the sum of the weights.
    return torch.where((found - right).abs() < 1e-6, right, found), right


@proves("trax_820")
def _(module: Any) -> tuple[Tensor, Tensor]:
    real, actual, expected = REAL.flip(-1), [], []
    for causal in (False, True):
        m, x = made(module.SelfAttention, C, H, 5, 7, causal=causal, masked=True), tokens()
        q, k, v = (x[:, None] @ w for w in (m.w_q, m.w_k, m.w_v))
        seen = (real[:, None] & CAUSAL if causal else real[:, None].expand(B, T, T))[:, None]
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        actual.append(m(x, real.long())[real])
        expected.append((context @ m.w_o).sum(1)[real])
    return torch.stack(actual), torch.stack(expected)
