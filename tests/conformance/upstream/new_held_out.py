"""A second set of held-out bugs of public projects, with proofs: written without running the check or reading it.

They guide no change of it. Once a bug guides a change, it is moved to the known ones.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from upstream.cases import Case, image, sizes
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


def _tokens_first() -> tuple[Any, ...]:
    """Return 6 tokens of two images, tokens first."""
    return (torch.randn(6, 2, 32),)


def _peptides() -> tuple[Any, ...]:
    """Return 5 amino acids of two peptides, their masses and charges, and 7 peaks of their spectra."""
    amino_acids = torch.randint(1, 20, (2, 5))
    return amino_acids, torch.rand(2), torch.tensor([2, 3]), torch.randn(2, 7, 32)


def _clicked_items() -> tuple[Any, ...]:
    """Return the items of two users, and how many there are of each."""
    return torch.randn(2, 7, 16), torch.tensor([7, 4])


def _beats_and_notes() -> tuple[Any, ...]:
    """Return two rhythms of 6 beats, and the note before each beat."""
    return torch.rand(2, 6, 2), torch.randint(0, 10, (2, 6))


def _views() -> tuple[Any, ...]:
    """Return two bird's eye views of 4 × 4 cells, and those of the frame before."""
    return torch.randn(2, 16, 32), torch.randn(2, 16, 32)


def _samples_of_molecules() -> tuple[Any, ...]:
    """Return two samples of each of two molecules of 8 atoms, pairs in windows of 4, and where there are atoms."""
    return torch.randn(4, 8, 16), torch.randn(2, 2, 4, 4, 8), torch.ones(4, 8)


def _headlines() -> tuple[Any, ...]:
    """Return the words of two headlines, the second padded with zeros."""
    words = torch.randint(1, 20, (2, 7))
    words[1, 4:] = 0
    return (words,)


def _images_and_questions() -> tuple[Any, ...]:
    """Return two feature maps, two questions of up to 6 words, and the numbers of words."""
    return torch.randn(2, 4, 3, 3), torch.randint(1, 20, (2, 6)), torch.tensor([6, 4])


def _sequence() -> tuple[Any, ...]:
    """Return two sequences of the only length that there is."""
    return (torch.randn(2, 8, 32),)


def _feature_map() -> tuple[Any, ...]:
    """Return two feature maps of 8 × 8 pixels."""
    return (torch.randn(2, 16, 8, 8),)


def _patches() -> tuple[Any, ...]:
    """Return the patches of two images of 4 × 6."""
    return (torch.randn(2, 24, 32),)


def _packed_images() -> tuple[Any, ...]:
    """Return the patches of two images, where they begin and end, and the angles of the patches."""
    return torch.randn(9, 32), torch.tensor([0, 5, 9]), torch.randn(9, 4)


def _queries_and_memory() -> tuple[Any, ...]:
    """Return queries, keys, values and which keys each query may look at."""
    memory = torch.randn(2, 7, 32)
    return torch.randn(2, 5, 32), memory, memory, torch.ones(2, 5, 7)


def _roads() -> tuple[Any, ...]:
    """Return 5 roads at 3 times, twice, and the sources and targets of 8 edges."""
    edges = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 4], [1, 2, 3, 4, 0, 2, 4, 1]])
    return torch.randn(2, 5, 3, 5), edges


NEW_HELD_OUT = (
    Case(
        "train_llm_from_scratch_3",
        "MultiHeadAttention",
        "FareedKhan-dev/train-llm-from-scratch#3",
        "scale-wrong",
        options={"causal": True, **sizes(n_head=4, n_embed=32, context_length=16)},
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
        "tt_metal_56789",
        "ResidualAttentionBlock",
        "tenstorrent/tt-metal#56789",
        "scale-wrong",
        options=sizes(hidden=32, num_heads=4),
        example=_tokens_first,
    ),
    Case(
        "paddlerec_904",
        "CapsuleLayer",
        "PaddlePaddle/PaddleRec#904",
        "softmax-wrong-dim",
        known_as=("rows-not-normalised", "padding-leak", "mask-unused"),
        options=sizes(input_units=16, out_units=8, max_len=10, k_max=3),
        example=_clicked_items,
    ),
    Case(
        "everybody_compose_53",
        "AttentionRNN",
        "tsunrise/everybody-compose#53",
        "softmax-wrong-dim",
        known_as=("rows-not-normalised", "attention-ignored"),
        options=sizes(num_notes=10, embed_dim=8, hidden_dim=12),
        example=_beats_and_notes,
    ),
    Case(
        "diskt_6",
        "ContradictoryAttention",
        "zyy-2001/DisKT#6",
        "future-leak",
        options={"causal": True},
    ),
    Case(
        "buzzbloom_10",
        "CascadeEncoder",
        "HeyWeCome/BuzzBloom#10",
        "future-leak",
        options={"causal": True},
    ),
    Case(
        "keras_23038",
        "DecoderSelfAttention",
        "keras-team/keras#23038",
        "future-leak",
        known_as=("mask-unused",),
        options={"causal": True},
    ),
    Case(
        "movie_gen_8",
        "TemporalTransformer",
        "kyegomez/movie-gen#8",
        "batch-mixed",
        options=sizes(),
    ),
    Case(
        "uniad_268",
        "TemporalSelfAttention",
        "OpenDriveLab/UniAD#268",
        "batch-mixed",
        options=sizes(embed_dims=32, bev_h=4, bev_w=4),
        example=_views,
    ),
    Case(
        "boltz_523",
        "AtomAttention",
        "jwohlwend/boltz#523",
        "mask-broadcast",
        known_as=("batch-mixed",),
        options=sizes(c_s=16, c_z=8, num_heads=4, window=4),
        example=_samples_of_molecules,
    ),
    Case(
        "attentions_4",
        "MultiHeadAttention",
        "sooftware/attentions#4",
        "mask-broadcast",
        known_as=("batch-mixed", "padding-leak", "mask-unused", "nan-on-masked-rows"),
    ),
    Case(
        "deep_learning_notes_11",
        "MultiheadAttention",
        "datawhalechina/deep-learning-notes#11",
        "heads-mixed-split",
    ),
    Case(
        "vllm_fork_1218",
        "EncoderAttention",
        "HabanaAI/vllm-fork#1218",
        "heads-mixed-split",
        known_as=("heads-mixed-merge", "attention-ignored", "weights-wrong"),
    ),
    Case(
        "denoising_diffusion_1",
        "AttnBlock",
        "hmdolatabadi/denoising_diffusion#1",
        "projection-unused",
        known_as=("keys-values-swapped", "context-wrong"),
        options=sizes(channels=16),
        example=image,
    ),
    Case(
        "cellflow_226",
        "TokenAttentionPooling",
        "theislab/CellFlow#226",
        "mask-unused",
        known_as=("padding-leak",),
        options=sizes(dim=32, num_heads=4),
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
        "linformer_pytorch_19",
        "MHAttention",
        "tatp22/linformer-pytorch#19",
        "mask-fill-overflow",
        known_as=("crashes",),
        options=sizes(input_size=8, channels=32, nhead=4, dim_k=4),
        example=_sequence,
    ),
    Case(
        "depthcharge_38",
        "PeptideDecoder",
        "wfondrie/depthcharge#38",
        "mask-fill-positive",
        known_as=("future-leak", "mask-fill-too-small"),
        options={"causal": True, **sizes()},
        example=_peptides,
    ),
    Case(
        "maxtext_4289",
        "Attention",
        "AI-Hypercomputer/maxtext#4289",
        "window-off-by-one",
        options={
            "causal": True,
            "window": 4,
            **sizes(
                emb_dim=32, num_query_heads=4, num_kv_heads=2, head_dim=8, sliding_window_size=4
            ),
        },
    ),
    Case(
        "maxvit_2",
        "MaxViTAttention",
        "ChristophReich1996/MaxViT#2",
        "context-wrong",
        known_as=("weights-wrong", "window-missing"),
        options=sizes(dim=16),
        example=_feature_map,
    ),
    Case(
        "mlxcel_1600",
        "VisionBlock",
        "lablup/mlxcel#1600",
        "context-wrong",
        known_as=("weights-wrong",),
        options=sizes(),
        example=_patches,
    ),
    Case(
        "softmax_n_32",
        "AttentionN",
        "softmax1/Flash-Attention-Softmax-N#32",
        "dropout-in-eval",
        options=sizes(dim=32, heads=4, dropout=0.1),
    ),
    Case(
        "speechbrain_3073",
        "RelPosMHAXL",
        "speechbrain/speechbrain#3073",
        "relative-shift-wrong",
        known_as=("weights-wrong",),
    ),
    Case(
        "nntrainer_3982",
        "DisentangledSelfAttention",
        "nntrainer/nntrainer#3982",
        "relative-shift-wrong",
        known_as=("weights-wrong",),
        options=sizes(hidden_size=32, num_heads=4),
    ),
    Case(
        "mlx_3071",
        "AlibiAttention",
        "ml-explore/mlx#3071",
        "weights-wrong",
        options={"causal": True, **sizes(dims=48, num_heads=6)},
    ),
    Case(
        "fast_transformers_10",
        "RecurrentAttentionLayer",
        "idiap/fast-transformers#10",
        "gradient-wrong",
        known_as=("crashes",),
        options={"causal": True},
    ),
    Case(
        "moeut_6",
        "SwitchHead",
        "RobertCsordas/moeut#6",
        "cache-mismatch",
        known_as=("rotary-offset", "rotary-mismatch"),
        options={"causal": True},
    ),
    Case(
        "omlx_2363",
        "Attention",
        "jundot/omlx#2363",
        "cache-mismatch",
        known_as=("rotary-offset", "rotary-mismatch"),
        options={"causal": True, **sizes(dims=32, n_heads=4, n_kv_heads=2)},
    ),
    Case(
        "videollama3_55",
        "VisionSdpaAttention",
        "DAMO-NLP-SG/VideoLLaMA3#55",
        "undefined-or-global-name",
        known_as=("crashes",),
        options=sizes(hidden_size=32, num_attention_heads=4),
        example=_packed_images,
    ),
    Case(
        "cs249r_book_1875",
        "MultiHeadAttention",
        "harvard-edge/cs249r_book#1875",
        "crashes",
        known_as=("mask-broadcast", "length-dependent"),
        options=sizes(embed_dim=32, num_heads=4),
        example=_queries_and_memory,
    ),
    Case(
        "truxify_13116",
        "SpatialTemporalGAT",
        "KanishJebaMathewM/Truxify#13116",
        "batch-mixed",
        known_as=("length-dependent", "attention-ignored"),
        options=sizes(),
        example=_roads,
    ),
    Case(
        "vllm_13686",
        "Olmo2Attention",
        "vllm-project/vllm#13686",
        "crashes",
        options={"causal": True, **sizes(hidden_size=32, num_heads=4, num_kv_heads=2)},
    ),
)


def _each(call: Any, *inputs: Tensor) -> Tensor:
    """Return the outputs of a call for each sample alone."""
    return torch.cat([call(*sample) for sample in zip(*(x.split(1) for x in inputs), strict=True)])


# --- scale -------------------------------------------------------------------------------------------


@proves("train_llm_from_scratch_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, H, C, 8), tokens()
    parts = [attended(h.query(x), h.key(x), h.value(x), CAUSAL, 1) for h in m.heads]
    return m(x), m.proj(torch.cat(parts, -1))


@proves("tiny_transformers_71")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.CausalAttention, module.AttnConfig(d_model=C, d_head=5)), tokens()
    q, k, v = (x[:, None] @ w for w in (m.w_q, m.w_k, m.w_v))
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=CAUSAL)
    return m(x), (context @ m.w_o).sum(1)


@proves("tt_metal_56789")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.ResidualAttentionBlock, 24, H), tokens(T, B, 24)
    a, y = m.attn, m.ln_1(x).transpose(0, 1)
    context = a.out_proj(attended(a.q_proj(y), a.k_proj(y), a.v_proj(y))).transpose(0, 1)
    return m(x), x + context + m.mlp(m.ln_2(x + context))


# --- softmax -----------------------------------------------------------------------------------------


@proves("paddlerec_904")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, items = made(module.CapsuleLayer, C, 5, 8, 3), tokens()
    logits = m.B_matrix[:, :, :T].expand(B, 3, T)
    mapped = items @ m.bilinear_mapping_matrix
    expected = mapped
    for _ in range(3):
        weights = logits.masked_fill(~REAL[:, None], float("-inf")).softmax(-1)
        expected = m.squash(weights @ mapped)
        logits = logits + expected @ mapped.mT
    return m(items, REAL.sum(1)), expected


@proves("everybody_compose_53")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, notes = made(module.AttentionRNN, 9, 5, 7), tokens(B, T, 2), torch.randint(9, (B, T))
    beats, state, logits = m.beat_encoder(x)[0], None, []
    for t in range(T):
        hidden = torch.zeros(1, B, 7).double() if state is None else state[0]
        pairs = torch.cat([hidden[0, :, None].expand(B, T, 7), beats], -1)
        scores = pairs
        for layer in list(m.score)[:-1]:
            scores = layer(scores)
        context = scores.mT.softmax(-1) @ beats
        mixed = torch.cat([context, m.note_embedding(notes[:, t : t + 1])], -1)
        out, state = m.decoder(mixed + m.mix(mixed), state)
        logits.append(m.to_notes(out))
    return m(x, notes), torch.cat(logits, 1)


# --- what a mask hides -------------------------------------------------------------------------------


@proves("diskt_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.ContradictoryAttention, C, H), tokens()
    past = x[:, :4]
    return m(x, x, x)[:, :4], m(past, past, past)


@proves("buzzbloom_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.CascadeEncoder, C, H), tokens()
    return m(x)[:, :4], m(x[:, :4])


@proves("keras_23038")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.DecoderSelfAttention, C, H), tokens()
    a = m.attention
    context = attended(a.query_dense(x), a.key_dense(x), a.value_dense(x), CAUSAL)
    return m(x), m.norm(x + a.output_dense(context))


@proves("boltz_523")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, atoms, real = made(module.AtomAttention, C, 5, H, 3), tokens(4, T, C), torch.ones(4, T)
    pairs = tokens(2, 2, 3, 3, 5)
    return m(atoms, pairs, real), _each(m, atoms, pairs.repeat_interleave(2, 0), real)


@proves("attentions_4")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, C, H), tokens()
    context = attended(m.query_proj(x), m.key_proj(x), m.value_proj(x), REAL)
    return m(x, x, x, ~REAL[:, None].expand(B, T, T))[0], context


@proves("cellflow_226")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TokenAttentionPooling, C, H), tokens()
    alone = [m(row[None, real], real[None, real]) for row, real in zip(x, REAL, strict=True)]
    return m(x, REAL), torch.cat(alone)


# --- padding -----------------------------------------------------------------------------------------


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


# --- mask fills --------------------------------------------------------------------------------------


@proves("linformer_pytorch_19")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MHAttention, T, C, H, 3), tokens()
    expected = m(x)
    actual = copy.deepcopy(m).half()(x.half()).double()
    return torch.where((actual - expected).abs() < 1e-2, expected, actual), expected


@proves("depthcharge_38")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, amino_acids = made(module.PeptideDecoder, C, H), torch.randint(1, 20, (B, T))
    spectra = tokens(B), torch.tensor([1, 2, 3]), tokens(B, 5, C)
    return m(amino_acids, *spectra)[:, :4], m(amino_acids[:, :3], *spectra)


# --- windows -----------------------------------------------------------------------------------------


@proves("maxtext_4289")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, H, 2, 4, sliding_window_size=3), tokens()
    q, k, v = heads(m.query(x)), heads(m.key(x), 2), heads(m.value(x), 2)
    keep = CAUSAL.triu(-2)
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, enable_gqa=True)
    return m(x), m.out(merged(context))


@proves("maxvit_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MaxViTAttention, C, H), tokens(B, C, 4, 6)

    def within(x: Tensor, norm: Any, attend: Any) -> Tensor:
        cell = x.flatten(2).mT
        return (cell + attend(norm(cell))).mT.reshape(x.shape)

    y, z = x.clone(), x.clone()
    for i in range(0, 4, 2):
        for j in range(0, 6, 2):
            y[:, :, i : i + 2, j : j + 2] = within(
                x[:, :, i : i + 2, j : j + 2], m.norm1, m.block_attn
            )
    for i in range(2):
        for j in range(3):
            z[:, :, i::2, j::3] = within(y[:, :, i::2, j::3], m.norm2, m.grid_attn)
    return m(x), z


@proves("mlxcel_1600")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, patches = made(module.VisionBlock, C, H, 3, 5), tokens(B, 15, C)
    image, expected = patches.view(B, 3, 5, C), torch.empty(B, 3, 5, C).double()
    for i in range(0, 3, 2):
        for j in range(0, 5, 2):
            window = image[:, i : i + 2, j : j + 2]
            h = window.flatten(1, 2)
            h = h + m.attn(m.norm1(h), [0, h.shape[1]])
            expected[:, i : i + 2, j : j + 2] = (h + m.mlp(m.norm2(h))).view(window.shape)
    return m(patches), expected.flatten(1, 2)


# --- heads and batch ---------------------------------------------------------------------------------


@proves("movie_gen_8")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TemporalTransformer, C, 1, H, 24), tokens()
    (block,) = m.blocks
    y = x + m.pos_embed[:, :T]
    weights, biases = block.attn.in_proj_weight, block.attn.in_proj_bias
    q, k, v = F.linear(block.norm1(y), weights, biases).chunk(3, -1)
    y = y + block.attn.out_proj(attended(q, k, v))
    return m(x), m.norm(y + block.mlp(block.norm2(y)))


@proves("uniad_268")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, view, before = made(module.TemporalSelfAttention, C, 2, 3), tokens(), tokens()
    return m(view, before), _each(m, view, before)


@proves("truxify_13116")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SpatialTemporalGAT, 5), tokens(B, 4, 3, 5)
    edges = torch.tensor([[0, 1, 2, 3, 0, 2], [1, 2, 3, 0, 2, 1]])
    h = x.transpose(1, 2).reshape(-1, 4, 5)
    for layer in m.spatial_layers:
        h = F.elu(torch.stack([layer(graph, edges) for graph in h]))
    _, last = m.temporal(h.view(B, 3, 4, -1).transpose(1, 2).flatten(0, 1))
    return m(x, edges), m.head(last[0]).view(B, 4, -1)


@proves("deep_learning_notes_11")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, memory = made(module.MultiheadAttention, C, H), tokens(), tokens(B, 5, C)
    context = attended(m.q_proj(x), m.k_proj(memory), m.v_proj(memory))
    return m(x, memory, memory), m.out_proj(context)


@proves("vllm_fork_1218")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.EncoderAttention, C, H), tokens()
    return m(x), m.out_proj(attended(*m.qkv_proj(x).chunk(3, -1)))


# --- projections and gradients -----------------------------------------------------------------------


@proves("denoising_diffusion_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AttnBlock, C), tokens(B, C, 2, 3)
    h = m.normalize(x)
    q, k, v = (project(h).flatten(2).mT for project in (m.query, m.key, m.value))
    context = F.scaled_dot_product_attention(q, k, v)
    return m(x), x + m.proj_out(context.mT.reshape(x.shape))


@proves("fast_transformers_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, direction = made(module.RecurrentAttentionLayer, C, H), tokens(), tokens()
    q, k = (heads(F.elu(p(x).view(B, T, C)) + 1) for p in (m.query_projection, m.key_projection))
    weights = (q @ k.mT) * CAUSAL
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-6)
    expected = m.out_projection(merged(weights @ heads(m.value_projection(x))))
    weight = m.key_projection.weight
    grads = [torch.autograd.grad((y * direction).sum(), weight)[0] for y in (m(x), expected)]
    return grads[0], grads[1]


# --- dropout -----------------------------------------------------------------------------------------


@proves("softmax_n_32")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AttentionN, C, H, n=1.0, dropout=0.5), tokens()
    q, k, v = (heads(part) for part in m.qkv(x).chunk(3, -1))
    scores = (q @ k.mT / 2).exp()
    return m(x), m.out(merged(scores / (1 + scores.sum(-1, keepdim=True)) @ v))


# --- positions and caches ----------------------------------------------------------------------------


@proves("speechbrain_3073")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.RelPosMHAXL, C, H), tokens()
    q, k, v = (part.transpose(1, 2) for part in m.in_proj(x).view(B, T, H, -1).chunk(3, -1))
    distances = torch.arange(T)[:, None] - torch.arange(T)
    angles = distances[..., None] * m.positional_encoding.inv_freq
    places = torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)
    places = m.linear_pos(places).unflatten(-1, (H, -1))
    scores = (q + m.pos_bias_u[:, None]) @ k.mT
    scores = scores + torch.einsum("bhid,ijhd->bhij", q + m.pos_bias_v[:, None], places)
    return m(x), m.out_proj(merged((scores / 2).softmax(-1) @ v))


@proves("nntrainer_3982")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.DisentangledSelfAttention, C, H), tokens()
    q, k, v = (heads(project(x)) for project in (m.query_proj, m.key_proj, m.value_proj))
    distances = (torch.arange(T)[:, None] - torch.arange(T) + 4).clamp(0, 7)
    of_keys, of_queries = (
        project(m.rel_embeddings).unflatten(-1, (H, -1))[distances]
        for project in (m.pos_key_proj, m.pos_query_proj)
    )
    scores = q @ k.mT + torch.einsum("bhid,ijhd->bhij", q, of_keys)
    scores = scores + torch.einsum("bhjd,ijhd->bhij", k, of_queries)
    return m(x), m.dense(merged((scores / 12**0.5).softmax(-1) @ v))


@proves("mlx_3071")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.AlibiAttention, 24, 6), tokens(B, T, 24)
    slopes = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]).double()
    distances = torch.arange(T) - torch.arange(T)[:, None]
    bias = (slopes[:, None, None] * distances).masked_fill(~CAUSAL, float("-inf"))
    q, k, v = (heads(project(x), 6) for project in (m.query_proj, m.key_proj, m.value_proj))
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return m(x), m.out_proj(merged(context))


@proves("moeut_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SwitchHead, C, H), tokens()
    return in_steps(m, x), m(x)[0]


@proves("omlx_2363")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, cache = made(module.Attention, 24, H, 2), tokens(B, T, 24), module.KVCache()
    return torch.cat([m(part, cache) for part in x.split([3, 2, 1], dim=1)], 1), m(x)


# --- calls that fail ---------------------------------------------------------------------------------


@proves("videollama3_55")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, patches, angles = made(module.VisionSdpaAttention, C, H), tokens(9, C), tokens(9, 2)
    q, k, v = (project(patches).view(9, H, 4) for project in (m.q_proj, m.k_proj, m.v_proj))
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]
    q, k = (
        torch.view_as_real(torch.complex(*x.contiguous().chunk(2, -1)) * turn).mT.flatten(-2)
        for x in (q, k)
    )
    same = torch.arange(9) < 5
    same = same[:, None] == same
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=same)
    expected = m.out_proj(context.transpose(0, 1).flatten(1))
    try:
        return m(patches, torch.tensor([0, 5, 9]), angles), expected
    except AttributeError:
        return torch.full_like(expected, float("nan")), expected


@proves("cs249r_book_1875")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, memory = made(module.MultiHeadAttention, C, H), tokens(), tokens(B, 5, C)
    keep = torch.ones(T, 5).tril().expand(B, T, 5)
    context = attended(m.q_proj(x), m.k_proj(memory), m.v_proj(memory), keep[0].bool())
    return m(x, memory, memory, keep), m.out_proj(context)


@proves("vllm_13686")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Olmo2Attention, C, H, 2), tokens()
    q, k, v = m.qkv_proj(x).split([C, 8, 8], -1)
    q, k = rotated(heads(m.q_norm(q))), rotated(heads(m.k_norm(k), 2))
    context = F.scaled_dot_product_attention(q, k, heads(v, 2), attn_mask=CAUSAL, enable_gqa=True)
    return m(x), m.o_proj(merged(context))
