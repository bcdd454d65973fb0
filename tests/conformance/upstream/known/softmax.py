"""Known bugs of the softmax and the normalization of the weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from upstream.cases import Case, edges, image, sizes
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
    tokens,
)


def _words() -> tuple[Any, ...]:
    """Return the embedded words of two questions, words first."""
    return (torch.randn(6, 2, 12),)


def _faces() -> tuple[Any, ...]:
    """Return the features of two pairs of faces and the colors of the second face of each pair."""
    return torch.randn(2, 16, 4, 4), torch.randn(2, 16, 4, 4), torch.randn(2, 3, 4, 4)


def _sentences() -> tuple[Any, ...]:
    """Return 3 sentences of 6 words, words first."""
    return (torch.randint(0, 20, (6, 3)),)


def _items() -> tuple[Any, ...]:
    """Return the next items of two users, their histories, and the lengths of these."""
    return torch.randn(2, 16), torch.randn(2, 5, 16), torch.tensor([5, 3])


def _passages() -> tuple[Any, ...]:
    """Return two passages of 7 words, and a summary of the question to each."""
    return torch.randn(2, 7, 16), torch.randn(2, 16)


def _points() -> tuple[Any, ...]:
    """Return the features of 6 points of two clouds, and their coordinates."""
    return torch.randn(2, 6, 16), torch.randn(2, 6, 3)


def _clicked_items() -> tuple[Any, ...]:
    """Return the items of two users, and how many there are of each."""
    return torch.randn(2, 7, 16), torch.tensor([7, 4])


def _beats_and_notes() -> tuple[Any, ...]:
    """Return two rhythms of 6 beats, and the note before each beat."""
    return torch.rand(2, 6, 2), torch.randint(0, 10, (2, 6))


def _views() -> tuple[Any, ...]:
    """Return the feature maps of 2 views of 3 × 4 pixels, twice."""
    return (torch.randn(2, 16, 2, 3, 4),)


def _facts() -> tuple[Any, ...]:
    """Return 5 facts, a question, and the memory so far."""
    return torch.randn(2, 5, 16), torch.randn(2, 16), torch.randn(2, 16)


def _step() -> tuple[Any, ...]:
    """Return a word of each of two sentences, the state of the decoder and the outputs of the encoder."""
    return torch.randint(0, 20, (2,)), torch.randn(1, 2, 16), torch.randn(5, 2, 16)


def _molecule() -> tuple[Any, ...]:
    """Return the atoms of a molecule, its bonds, and their types and directions."""
    atoms, bonds = edges()
    kinds = torch.stack([torch.randint(0, 4, (8,)), torch.randint(0, 3, (8,))], dim=1)
    return atoms, bonds, kinds


def _hyperedges() -> tuple[Any, ...]:
    """Return two series of 6 nodes, and the nodes of 3 hyperedges."""
    nodes, hyperedges = [0, 1, 2, 2, 3, 4, 0, 4, 5], [0, 0, 0, 1, 1, 1, 2, 2, 2]
    return torch.randn(2, 6, 16), torch.tensor([nodes, hyperedges])


def _molecules() -> tuple[Any, ...]:
    """Return the atoms of two molecules, padded with 0, and their bonds."""
    atoms = torch.randint(1, 20, (2, 6)) * (torch.arange(6) < torch.tensor([6, 4])[:, None])
    bonds = torch.zeros(2, 6, 6)
    for molecule, count in zip(bonds, (6, 4), strict=True):
        first = torch.arange(count - 1)
        molecule[first, first + 1] = molecule[first + 1, first] = 1.0
    return atoms, bonds


CASES = (
    Case(
        "labml_146",
        "AttentionBlock",
        "labmlai/annotated_deep_learning_paper_implementations#146",
        "softmax-wrong-dim",
        options=sizes(n_channels=16, n_heads=2, d_k=8),
    ),
    Case("fastnlp_254", "MultiHeadAttention", "FudanNLP/fastNLP#254", "softmax-wrong-dim"),
    Case("pytorch_nlp_2", "Attention", "PetrochukM/PyTorch-NLP#2", "softmax-wrong-dim"),
    Case("rendezvous_3", "MHMA", "CAMMA-public/rendezvous-in-time#3", "softmax-wrong-dim"),
    Case("detr_247", "MHAttentionMap", "facebookresearch/detr#247", "softmax-wrong-dim"),
    Case(
        "catalyst_285",
        "LamaPooling",
        "catalyst-team/catalyst#285",
        "softmax-wrong-dim",
        known_as=("rows-not-normalised",),
        options=sizes(features_in=16),
    ),
    Case(
        "self_attention_gan_11",
        "Self_Attn",
        "heykeetae/Self-Attention-GAN#11",
        "softmax-wrong-dim",
        options=sizes(in_dim=16, activation="relu"),
    ),
    Case(
        "keqa_2",
        "EmbedVector",
        "DEEP-PolyU/KEQA_WSDM19#2",
        "softmax-wrong-dim",
        known_as=("rows-not-normalised",),
        options=sizes(words_dim=12, hidden_size=8, output_size=10),
        example=_words,
    ),
    Case(
        "pytorch_geometric_224",
        "GATConv",
        "pyg-team/pytorch_geometric#224",
        "softmax-wrong-dim",
        options=sizes(in_channels=16, out_channels=8, heads=2),
        example=edges,
    ),
    Case(
        "swiftformer_4",
        "EfficientAdditiveAttnetion",
        "Amshaker/SwiftFormer#4",
        "softmax-wrong-dim",
        known_as=("rows-not-normalised",),
        options=sizes(in_dims=16, token_dim=8, num_heads=2),
    ),
    Case(
        "ssat_5",
        "SymmetryAttention",
        "Snowfallingplum/SSAT#5",
        "softmax-wrong-dim",
        options=sizes(dim=16, key_dim=8),
        example=_faces,
    ),
    Case(
        "hierarchical_attention_network_5",
        "WordRNN",
        "pandeykartikey/Hierarchical-Attention-Network#5",
        "softmax-wrong-dim",
        known_as=("batch-mixed", "rows-not-normalised"),
        options=sizes(vocab_size=20, embedsize=12, hid_size=8),
        example=_sentences,
    ),
    Case(
        "recbole_1483",
        "InterestEvolvingLayer",
        "RUCAIBox/RecBole#1483",
        "rows-not-normalised",
        options=sizes(input_size=16, rnn_hidden_size=8),
        example=_items,
    ),
    Case(
        "flash_linear_attention_594",
        "LinearAttention",
        "fla-org/flash-linear-attention#594",
        "rows-not-normalised",
        options={"causal": True},
    ),
    Case(
        "performer_pytorch_40",
        "SelfAttention",
        "lucidrains/performer-pytorch#40",
        "rows-not-normalised",
        options={"causal": True, **sizes(dim=32, heads=4, dim_head=8)},
    ),
    Case(
        "external_attention_18",
        "SKAttention",
        "xmu-xiaoma666/External-Attention-pytorch#18",
        "softmax-wrong-dim",
        known_as=("batch-mixed", "rows-not-normalised"),
        options=sizes(channel=16, kernels=(1, 3), reduction=4),
        example=image,
    ),
    Case(
        "dgl_3267",
        "DotGatConv",
        "dmlc/dgl#3267",
        "rows-not-normalised",
        known_as=("scale-missing", "scale-wrong"),
        options=sizes(in_feats=16, out_feats=8, num_heads=2),
        example=edges,
    ),
    Case(
        "double_attention_net_3",
        "DoubleAtten",
        "gjylt/DoubleAttentionNet#3",
        "softmax-wrong-dim",
        options=sizes(in_c=16),
        example=image,
    ),
    Case(
        "r_net_8",
        "PointerNet",
        "localminimum/R-net#8",
        "softmax-wrong-dim",
        known_as=("rows-not-normalised",),
        options=sizes(size=16, attn_size=8),
        example=_passages,
    ),
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
        "nlca_net_11",
        "SpaceTimeNonlocalBlock",
        "ZhiboRao/NLCA_Net#11",
        "rows-not-normalised",
        known_as=("softmax-wrong-dim", "weights-wrong"),
        options=sizes(in_channels=16),
        example=_views,
    ),
    Case(
        "dmn_tensorflow_6",
        "EpisodeModule",
        "therne/dmn-tensorflow#6",
        "softmax-wrong-dim",
        known_as=("batch-mixed", "rows-not-normalised"),
        options=sizes(num_hidden=16),
        example=_facts,
    ),
    Case(
        "self_attention_gan_tensorflow_3",
        "SelfAttention",
        "taki0112/Self-Attention-GAN-Tensorflow#3",
        "softmax-wrong-dim",
        known_as=("rows-not-normalised", "context-wrong", "weights-wrong"),
        options=sizes(ch=16),
        example=image,
    ),
    Case(
        "vision_transformer_1",
        "MultiHeadAttention",
        "nerminnuraydogan/vision-transformer#1",
        "softmax-wrong-dim",
        known_as=("rows-not-normalised",),
    ),
    Case(
        "seq2seq_6",
        "Decoder",
        "keon/seq2seq#6",
        "rows-not-normalised",
        known_as=("softmax-wrong-dim", "weights-wrong"),
        options=sizes(embed_size=16, hidden_size=16, output_size=20),
        example=_step,
    ),
    Case(
        "pretrain_gnns_49",
        "GATConv",
        "snap-stanford/pretrain-gnns#49",
        "softmax-wrong-dim",
        known_as=("rows-not-normalised", "weights-wrong"),
        options=sizes(emb_dim=16),
        example=_molecule,
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
        "ada_mshyper_7",
        "HypergraphConv",
        "shangzongjiang/Ada-MSHyper#7",
        "softmax-wrong-dim",
        known_as=("rows-not-normalised", "weights-wrong"),
        options=sizes(in_channels=16, out_channels=16),
        example=_hyperedges,
    ),
    Case(
        "chainer_chemistry_217",
        "GraphAttentionNetworks",
        "chainer/chainer-chemistry#217",
        "softmax-wrong-dim",
        known_as=("batch-mixed", "rows-not-normalised"),
        options=sizes(out_dim=8, hidden_dim=16, heads=2, n_layers=2, n_atom_types=20),
        example=_molecules,
    ),
    Case(
        "stacked_capsule_networks_5",
        "SCAE",
        "phanideepgampa/stacked-capsule-networks#5",
        "softmax-wrong-dim",
        known_as=("rows-not-normalised", "weights-wrong", "attention-ignored"),
        options=sizes(
            num_part_capsules=6, num_object_capsules=4, hidden=8, set_dim=16, set_heads=2
        ),
    ),
    Case(
        "flatten_transformer_26",
        "Stage",
        "LeapLabTHU/FLatten-Transformer#26",
        "rows-not-normalised",
        known_as=("scale-wrong", "weights-wrong", "length-dependent"),
        options=sizes(img_size=16, embed_dim=32, num_heads=4, sr_ratio=2, kernel_size=3),
    ),
)


@proves("labml_146")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.AttentionBlock, C, 2, 5), tokens(B, C, 3, 4)
    x = image.flatten(2).transpose(1, 2)
    q, k, v = (part.flatten(2) for part in m.projection(x).unflatten(-1, (2, -1)).chunk(3, -1))
    y = m.output(attended(q, k, v, count=2)) + x
    return m(image), y.transpose(1, 2).unflatten(-1, (3, 4))


@proves("fastnlp_254")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.MultiHeadAttention, C, 5, 7, H), tokens(), tokens()
    return m(x, y, y, ~REAL), m.out(attended(m.q_in(x), m.k_in(y), m.v_in(y), REAL))


@proves("pytorch_nlp_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, y = made(module.Attention, C), tokens(B, 4, C), tokens()
    query = m.linear_in(x)
    mix = F.scaled_dot_product_attention(query, y, y, scale=1.0)
    return m(x, y)[0], m.linear_out(torch.cat([mix, query], -1)).tanh()


@proves("rendezvous_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MHMA, C, H), tokens()
    return m(x), m.concat(attended(m.to_query(x), m.to_key(x), m.to_value(x)))


@proves("detr_247")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, q, image = made(module.MHAttentionMap, C, C, H), tokens(), tokens(B, C, 3, 4)
    key = heads(m.k_linear(image.flatten(2).transpose(1, 2)))
    weights = (heads(m.q_linear(q)) @ key.mT / 2.0).softmax(-1)
    return m(q, image), weights.transpose(1, 2).unflatten(-1, (3, 4))


@proves("catalyst_285")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.LamaPooling, C), tokens()
    conv = m.groups[-1].attention_pooling[0]
    weights = (x @ conv.weight[0] + conv.bias).softmax(1)
    pooled = (x[:, -1], x.mean(1), x.amax(1), (weights * x).sum(1))
    return m(x), torch.cat(pooled, -1)


@proves("self_attention_gan_11")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.Self_Attn, C, "relu"), tokens(B, C, 3, 4)
    with torch.no_grad():
        m.gamma += 1.0  # as after some steps of training
    q, k, v = (conv(image).flatten(2) for conv in (m.query_conv, m.key_conv, m.value_conv))
    context = v @ (q.mT @ k).softmax(-1).mT
    return m(image)[0], context.view_as(image) + image


@proves("keqa_2")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.EmbedVector, C, 5, 9), tokens(T, B, C)
    states = m.lstm(x)[0]
    weights = m.attn(torch.cat([x, states], -1)).softmax(0)
    return m(x), m.hidden2tag((weights * states).sum(0))


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


@proves("hierarchical_attention_network_5")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, words = made(module.WordRNN, 20, 9, 5), torch.randint(0, 20, (T, B))
    states = m.wordRNN(m.embed(words))[0]
    weights = m.attn_combine(m.wordattn(states).tanh()).softmax(0)
    return m(words)[0], (weights * states).sum(0)


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


@proves("performer_pytorch_40")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SelfAttention, C, H, 4, 7), tokens()
    q, k = (F.relu(heads(linear(x)) @ m.projection_matrix.mT) + 1e-3 for linear in (m.to_q, m.to_k))
    weights = (q @ k.mT).tril()
    context = weights / weights.sum(-1, keepdim=True) @ heads(m.to_v(x))
    return m(x), m.to_out(merged(context))


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


@proves("double_attention_net_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.DoubleAtten, C, 5, 6), tokens(B, C, 3, 4)
    gathering = m.convB(image).flatten(2).softmax(2)
    gathered = gathering @ m.convA(image).flatten(2).mT
    given = m.convV(image).flatten(2).softmax(1).mT @ gathered
    return m(image), image + m.conv_reconstruct(given.mT.reshape(B, 5, 3, 4))


@proves("r_net_8")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, state = made(module.PointerNet, C, 5), tokens(), tokens(B, C)
    first = m.attention(x, state)
    pooled = torch.einsum("bt,btc->bc", first.softmax(-1), x)
    return m(x, state), torch.stack([first, m.attention(x, m.cell(pooled, state))], 1)


@proves("point_transformer_pytorch_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.PointTransformerLayer, dim=C, pos_mlp_hidden_dim=8, attn_mlp_hidden_mult=2)
    x, places = tokens(), tokens(B, T, 3)
    q, k, v = m.to_qkv(x).chunk(3, -1)
    shift = m.pos_mlp(places[:, :, None] - places[:, None])
    weights = m.attn_mlp(q[:, :, None] - k[:, None] + shift).softmax(2)
    return m(x, places), (weights * (v[:, None] + shift)).sum(2)


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


@proves("nlca_net_11")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SpaceTimeNonlocalBlock, C), tokens(B, C, 2, 2, 3)
    q, k, v = (conv(x).flatten(2).mT for conv in (m.theta, m.phi, m.g))
    context = F.scaled_dot_product_attention(q, k, v, scale=1.0)
    return m(x), x + m.out(context.mT.reshape(B, C // 2, 2, 2, 3))


@proves("dmn_tensorflow_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, facts, question, memory = made(module.EpisodeModule, C), tokens(), tokens(B, C), tokens(B, C)
    q, k = question[:, None], memory[:, None]
    parts = [facts * q, facts * k, (facts - q).abs(), (facts - k).abs()]
    gates = m.w2(m.w1(torch.cat(parts, -1)).tanh())[..., 0].softmax(-1)
    state = torch.zeros_like(memory)
    for t in range(T):
        state = m.gru(facts[:, t], state, gates[:, t, None])
    return m(facts, question, memory), state


@proves("self_attention_gan_tensorflow_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SelfAttention, C), tokens(B, C, 3, 4)
    m.gamma.data.fill_(0.5)
    k, q, v = (project(x).flatten(2).mT for project in (m.f_conv, m.g_conv, m.h_conv))
    context = F.scaled_dot_product_attention(q, k, v, scale=1.0)
    return m(x), x + context.mT.reshape(x.shape) / 2


@proves("vision_transformer_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, C, H), tokens()
    contexts = [attended(h.query(x), h.key(x), h.value(x), count=1) for h in m.heads]
    return m(x), m.linear(torch.cat(contexts, -1))


@proves("seq2seq_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, state, outputs = made(module.Decoder, C, C, 20), tokens(1, B, C), tokens(T, B, C)
    energy = m.attention.attn(torch.cat([state.expand(T, B, C), outputs], -1)).relu()
    weights = (energy @ m.attention.v).softmax(0).T
    return m(torch.randint(0, 20, (B,)), state, outputs)[2], weights[:, None]


@proves("pretrain_gnns_49")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, (_, bonds, kinds), atoms = made(module.GATConv, C), _molecule(), tokens(5, C)
    x = m.weight_linear(atoms).unflatten(-1, (2, C))
    rows = []
    for target in range(5):
        into = bonds[1] == target
        sources = torch.cat([bonds[0, into], torch.tensor([target])])
        kind = torch.cat([kinds[into], torch.tensor([[4, 0]])])
        bond = m.edge_embedding1(kind[:, 0]) + m.edge_embedding2(kind[:, 1])
        seen = x[sources] + bond.unflatten(-1, (2, C))
        pairs = torch.cat([x[target].expand_as(seen), seen], -1)
        weights = F.leaky_relu((pairs * m.att).sum(-1), 0.2).softmax(0)
        rows.append((weights[..., None] * seen).sum(0).mean(0))
    return m(atoms, bonds, kinds), torch.stack(rows) + m.bias


@proves("llms_from_scratch_rs_30")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.CausalAttention, C, 8), tokens()
    return m(x), attended(m.w_query(x), m.w_key(x), m.w_value(x), CAUSAL, count=1)


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


@proves("chainer_chemistry_217")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.GraphAttentionNetworks, 5, C, 2, n_layers=2, n_atom_types=20)
    atoms = torch.randint(1, 20, (B, T)) * REAL
    ring = torch.eye(T).roll(1, 0).bool()
    bonds = (ring | ring.mT | torch.eye(T).bool()) & REAL[:, None] & REAL[:, :, None]
    expected = []
    # One molecule, one head and one atom at a time.
    for row, bond in zip(atoms, bonds, strict=True):
        size = int((row > 0).sum())
        start = h = m.embed(row[:size])
        for message, attention in zip(m.message_layers, m.attention_layers, strict=True):
            features, rows = message(h).view(size, 2, C), []
            for atom in range(size):
                near = bond[atom, :size].nonzero()[:, 0]
                pairs = [features[near], features[[atom]].expand(len(near), 2, C)]
                scores = F.leaky_relu(attention(torch.cat(pairs, -1)), 0.2)
                rows.append((scores.softmax(0) * features[near]).sum(0).mean(0))
            h = torch.stack(rows)
        gate = m.i_layers[0](torch.cat([h, start], -1)).sigmoid()
        expected.append((gate * m.j_layers[0](h)).sum(0))
    return m(atoms, bonds.double()), torch.stack(expected)


@proves("stacked_capsule_networks_5")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, parts = made(module.SCAE, 5, 3, 24, 8, C, H), tokens(B, 1, 28, 28), []
    for capsule in m.pcae.capsules:
        maps = capsule(x).flatten(2)
        parts.append((maps[:, :-1] @ maps[:, -1:].softmax(-1).mT).squeeze(-1))
    y = torch.stack(parts, 1)
    presence = y[..., 6:7].sigmoid()
    y = m.embed(torch.cat([presence, y[..., :6].relu(), y[..., 7:].relu()], -1))
    seeds = m.S.expand(B, -1, -1)
    for block, queries in ((m.sab, y), (m.pma, seeds)):
        q = block.fc_q(queries)
        out = block.ln0(q + attended(q, block.fc_k(y), block.fc_v(y)))
        y = block.ln1(out + block.fc_o(out).relu())
    actual = m(x)
    return (
        torch.cat([actual[0].flatten(), actual[1].flatten()]),
        torch.cat([m.fc_out(y).flatten(), presence.flatten()]),
    )


@proves("flatten_transformer_26")
def _(module: Any) -> tuple[Tensor, Tensor]:
    stage = made(module.Stage, 24, 4, 3, C, H, sr_ratio=2, kernel_size=3)
    images, m = tokens(B, 3, 24, 24), stage.blocks[0]
    torch.nn.init.normal_(m.positional_encoding)

    def focused(y: Tensor) -> Tensor:
        y = (y.relu() + 1e-6) / F.softplus(m.scale)
        return F.normalize(y**3, dim=-1) * y.norm(dim=-1, keepdim=True)

    x = stage.proj(images).flatten(2).mT + stage.pos_embed
    y = stage.norms[0](x)
    small = m.norm(m.sr(y.mT.unflatten(2, (6, 6))).flatten(2).mT)
    k, v = m.kv(small).chunk(2, -1)
    scores = heads(focused(m.q(y))) @ heads(focused(k + m.positional_encoding)).mT
    y = merged(scores / (scores.sum(-1, keepdim=True) + 9e-6) @ heads(v))
    maps = heads(v).mT.unflatten(-1, (3, 3)).flatten(0, 1)
    maps = m.dwc(F.interpolate(maps, size=(6, 6), mode="bilinear")).unflatten(0, (B, H))
    expected = x + m.proj(y + maps.flatten(1, 2).flatten(2).mT)
    return stage(images), expected.mT.unflatten(-1, (6, 6))
