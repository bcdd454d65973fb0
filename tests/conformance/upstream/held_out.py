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
    made,
    merged,
    proves,
    rotated,
    tokens,
)


def _titles() -> tuple[Any, ...]:
    """Return the tokens of two titles and where they are no padding."""
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])
    return torch.randint(1, 64, (2, 7)) * mask, mask


def _utterances() -> tuple[Any, ...]:
    """Return three padded utterances and their lengths."""
    return torch.randn(3, 6, 16), [6, 4, 3]


def _photos() -> tuple[Any, ...]:
    """Return two feature maps of 4 × 4 pixels, with the channels last."""
    return (torch.randn(2, 4, 4, 16),)


def _recordings() -> tuple[Any, ...]:
    """Return two spectrograms and the texts that they speak, each with its lengths."""
    text = torch.randint(1, 40, (2, 6))
    return torch.randn(2, 8, 9), torch.tensor([9, 7]), text, torch.tensor([6, 4])


def _observations() -> tuple[Any, ...]:
    """Return the observations of two cells, and how many there are of each."""
    return torch.randn(11, 32), torch.tensor([0, 7, 4])


def _prompts() -> tuple[Any, ...]:
    """Return two prompts, of which the shorter is padded on the left, and where they are no padding."""
    return torch.randint(1, 50, (2, 7)), torch.tensor([[1] * 7, [0] * 3 + [1] * 4])


def _step() -> tuple[Any, ...]:
    """Return a word of each of two sentences, the state of the decoder and the outputs of the encoder."""
    return torch.randint(0, 20, (2,)), torch.randn(1, 2, 16), torch.randn(5, 2, 16)


def _videos() -> tuple[Any, ...]:
    """Return the frames of two videos of 4 frames."""
    return (torch.randn(8, 16, 3, 3),)


def _chats() -> tuple[Any, ...]:
    """Return two chats and where their images are."""
    return torch.randn(2, 10, 32), [[(1, 3)], [(4, 7)]]


def _texts() -> tuple[Any, ...]:
    """Return two texts, of which the shorter is padded."""
    return (torch.tensor([[5, 3, 9, 12, 7, 3, 21], [8, 3, 3, 30, 0, 0, 0]]),)


def _pages() -> tuple[Any, ...]:
    """Return text with two images, and after which of them its tokens come."""
    shown = torch.arange(8)[:, None] >= torch.tensor([2, 5])
    return torch.randn(2, 8, 32), torch.randn(2, 2, 3, 32), shown.long().expand(2, 8, 2)


def _molecule() -> tuple[Any, ...]:
    """Return the atoms of a molecule, its bonds, and their types and directions."""
    atoms, bonds = edges()
    kinds = torch.stack([torch.randint(0, 4, (8,)), torch.randint(0, 3, (8,))], dim=1)
    return atoms, bonds, kinds


HELD_OUT: tuple[Case, ...] = (
    Case(
        "news_recommendation_llm_21",
        "PLMBasedNewsEncoder",
        "YadaYuki/news-recommendation-llm#21",
        "mask-unused",
        known_as=("padding-leak",),
        options=sizes(),
        example=_titles,
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
        "trans2seg_4",
        "Attention_Decoder",
        "xieenze/Trans2Seg#4",
        "heads-mixed-merge",
        known_as=("heads-mixed-split",),
        options=sizes(dim=32, num_heads=4),
    ),
    Case(
        "tokenlearner_pytorch_1",
        "TokenLearnerBlock",
        "rish-16/tokenlearner-pytorch#1",
        "batch-mixed",
        options=sizes(S=6, C=16, num_heads=2),
        example=_photos,
    ),
    Case(
        "vision_transformer_1",
        "MultiHeadAttention",
        "nerminnuraydogan/vision-transformer#1",
        "softmax-wrong-dim",
        known_as=("rows-not-normalised",),
    ),
    Case(
        "nemo_6677",
        "AlignerModel",
        "NVIDIA-NeMo/Speech#6677",
        "mask-inverted",
        known_as=("padding-leak", "nan-on-masked-rows", "output-not-finite"),
        options=sizes(),
        example=_recordings,
    ),
    Case(
        "weather_generator_923",
        "MultiSelfAttentionHeadVarlen",
        "ecmwf/WeatherGenerator#923",
        "dropout-in-eval",
        options=sizes(dim_embed=32, num_heads=4, dropout_rate=0.1),
        example=_observations,
    ),
    Case(
        "time_series_prediction_32",
        "DecoderLayer",
        "LongxingTan/Time-series-prediction#32",
        "future-leak",
        known_as=("mask-fill-too-small", "mask-inverted"),
        options={"causal": True, **sizes(hidden_size=32, num_attention_heads=4)},
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
        "transformers_47328",
        "Token2WavDiTModel",
        "huggingface/transformers#47328",
        "rotary-layout",
        known_as=("rotary-mismatch",),
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
        "seq2seq_6",
        "Decoder",
        "keon/seq2seq#6",
        "rows-not-normalised",
        known_as=("softmax-wrong-dim", "weights-wrong"),
        options=sizes(embed_size=16, hidden_size=16, output_size=20),
        example=_step,
    ),
    Case(
        "video_ldm_5",
        "TemporalAttentionLayer",
        "srpkdyy/VideoLDM#5",
        "context-wrong",
        known_as=("batch-mixed",),
        options=sizes(dim=16, n_frames=4, n_heads=4),
        example=_videos,
    ),
    Case(
        "unsloth_2868",
        "LlamaAttention",
        "unslothai/unsloth#2868",
        "future-leak",
        options={"causal": True},
    ),
    Case(
        "vllm_47332",
        "Gemma4Attention",
        "vllm-project/vllm#47332",
        "window-missing",
        known_as=("causal-alignment", "cache-mismatch"),
        options=sizes(hidden_size=32, num_heads=4, num_kv_heads=2, sliding_window=4),
        example=_chats,
    ),
    Case(
        "speechbrain_2276",
        "FastSpeech2Encoder",
        "speechbrain/speechbrain#2276",
        "mask-inverted",
        options=sizes(),
        example=_texts,
    ),
    Case(
        "retnet_10",
        "MultiScaleRetention",
        "Jamie-Stirling/RetNet#10",
        "weights-wrong",
        known_as=("context-wrong", "cache-mismatch", "length-dependent"),
        options={"causal": True, **sizes(hidden_size=32, heads=4, chunk_size=3)},
    ),
    Case(
        "transformers_26428",
        "IdeficsGatedCrossAttentionLayer",
        "huggingface/transformers#26428",
        "mask-fill-too-small",
        known_as=("nan-on-masked-rows", "padding-leak", "future-leak"),
        options=sizes(),
        example=_pages,
    ),
    Case(
        "zml_763",
        "SelfAttn",
        "zml/zml#763",
        "window-off-by-one",
        options={
            "causal": True,
            "window": 4,
            **sizes(hidden_size=32, num_heads=4, num_kv_heads=2, sliding_window=4),
        },
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
)

LENGTHS = REAL.sum(1).tolist()


@proves("news_recommendation_llm_21")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, ids = made(module.PLMBasedNewsEncoder), torch.randint(1, 64, (B, T)) * REAL
    alone = [m(ids[i : i + 1, :n], REAL[i : i + 1, :n]) for i, n in enumerate(LENGTHS)]
    return m(ids, REAL), torch.cat(alone)


@proves("stack_propagation_slu_5")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SelfAttention, C, 24, 12, 0.1), tokens()
    alone = [m(x[i : i + 1, :n], [n]) for i, n in enumerate(LENGTHS)]
    return m(x, LENGTHS), torch.cat(alone)


@proves("trans2seg_4")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, classes, x = made(module.Attention_Decoder, C, H), tokens(B, 4, C), tokens()
    k, v = m.fc_kv(x).chunk(2, -1)
    return m(classes, x)[1], m.proj(attended(m.fc_q(classes), k, v))


@proves("tokenlearner_pytorch_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TokenLearnerBlock, 6, C, H), tokens(B, 4, 4, C)
    y = m.tklr(x)
    a = m.mhsa
    q, k, v = F.linear(y, a.in_proj_weight, a.in_proj_bias).chunk(3, -1)
    return m(x), m.tkfsr(a.out_proj(attended(q, k, v)), x)


@proves("vision_transformer_1")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadAttention, C, H), tokens()
    contexts = [attended(h.query(x), h.key(x), h.value(x), count=1) for h in m.heads]
    return m(x), m.linear(torch.cat(contexts, -1))


@proves("nemo_6677")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, spec = made(module.AlignerModel, 20, C, 8), tokens(B, 8, 9)
    text, aligner = torch.randint(1, 20, (B, T)), m.alignment_encoder
    keys = aligner.key_proj(m.embed(text).transpose(1, 2)).transpose(1, 2)
    distances = torch.cdist(aligner.query_proj(spec).transpose(1, 2), keys)
    scores = (-0.0005 * distances**2).masked_fill(~REAL[:, None], float("-inf"))
    actual, _ = m(spec, torch.tensor([9, 8, 7]), text, REAL.sum(1))
    return actual, scores.softmax(-1)[:, None]


@proves("weather_generator_923")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.MultiSelfAttentionHeadVarlen, C, H, dropout_rate=0.5)
    x, parts = tokens(11, C), []
    for cell in x.split([7, 4]):
        y = m.lnorm(cell)[None]
        q, k = m.lnorm_q(heads(m.proj_heads_q(y))), m.lnorm_k(heads(m.proj_heads_k(y)))
        context = F.scaled_dot_product_attention(q, k, heads(m.proj_heads_v(y)))
        parts.append(cell + m.proj_out(merged(context))[0])
    return m(x, torch.tensor([0, 7, 4])), torch.cat(parts)


@proves("time_series_prediction_32")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, memory = made(module.DecoderLayer, C, H), tokens(), tokens(B, 4, C)
    a, c = m.self_attention, m.cross_attention
    y = m.ln1(x + attended(a.dense_q(x), a.dense_k(x), a.dense_v(x), CAUSAL))
    y = m.ln2(y + attended(c.dense_q(y), c.dense_k(memory), c.dense_v(memory)))
    return m(x, memory), m.ln3(y + m.ffn(y))


@proves("nnsight_673")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, ids, mask = made(module.LanguageModel), torch.randint(1, 50, (B, T)), REAL.flip(1).long()
    alone = [m(ids[i : i + 1, -n:])[0] for i, n in enumerate(LENGTHS)]
    return m(ids, mask)[mask.bool()], torch.cat(alone)


@proves("transformers_47328")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.Token2WavDiTModel, module.DiTConfig(hidden_size=C, head_dim=C // H))
    x, block = tokens(), m.transformer_blocks[0]
    y, a = block.attn_norm(x), block.attn
    q, k = (rotated(heads(project(y)), interleaved=True) for project in (a.to_q, a.to_k))
    x_ = x + a.to_out(merged(F.scaled_dot_product_attention(q, k, heads(a.to_v(y)))))
    return m(x), x_ + block.ff(block.ff_norm(x_))


@proves("rten_1321")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, mask = made(module.GroupQueryAttention, C, H, 2), tokens(), REAL.flip(1)
    q, k, v = heads(m.query(x)), heads(m.key(x), 2), heads(m.value(x), 2)
    context = F.scaled_dot_product_attention(
        q, k, v, CAUSAL & mask[:, None, None], enable_gqa=True
    ).nan_to_num()
    return m(x, mask), m.out(merged(context * mask[:, None, :, None]))


@proves("seq2seq_6")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, state, outputs = made(module.Decoder, C, C, 20), tokens(1, B, C), tokens(T, B, C)
    energy = m.attention.attn(torch.cat([state.expand(T, B, C), outputs], -1)).relu()
    weights = (energy @ m.attention.v).softmax(0).T
    return m(torch.randint(0, 20, (B,)), state, outputs)[2], weights[:, None]


@proves("video_ldm_5")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.TemporalAttentionLayer, C, 3, H), tokens(2 * 3, C, 2, 2)
    m.alpha.data.fill_(0.25)
    frames = x.unflatten(0, (2, 3)).permute(0, 3, 4, 1, 2).flatten(0, 2)
    q = frames + m.pos_enc(3)
    out = m.o_proj(attended(m.q_proj(q), m.k_proj(q), m.v_proj(q)))
    out = (0.25 * frames + 0.75 * out).unflatten(0, (2, 2, 2)).permute(0, 3, 4, 1, 2)
    return m(x), out.flatten(0, 1)


@proves("unsloth_2868")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.LlamaAttention, C, H, 2), tokens()
    q, k = rotated(heads(m.q_proj(x))), rotated(heads(m.k_proj(x), 2))
    context = F.scaled_dot_product_attention(
        q, k, heads(m.v_proj(x), 2), is_causal=True, enable_gqa=True
    )
    return m(x), m.o_proj(merged(context))


@proves("vllm_47332")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Gemma4Attention, C, H, 2, sliding_window=2), tokens()
    images = [[(0, 3)], [(1, 2), (4, 5)], []]
    keep = CAUSAL.triu(-1).repeat(B, 1, 1)
    for request, ranges in enumerate(images):
        for start, end in ranges:
            keep[request, start : end + 1, start : end + 1] = True
    q, k, v = m.qkv_proj(x).split([C, C // 2, C // 2], -1)
    context = F.scaled_dot_product_attention(
        heads(q), heads(k, 2), heads(v, 2), keep[:, None], enable_gqa=True
    )
    cache: dict[str, Tensor] = {}
    parts = [m(part, images, cache) for part in (x[:, :4], x[:, 4:])]
    actual = torch.stack([m(x, images), torch.cat(parts, 1)])
    return actual, m.o_proj(merged(context)).expand_as(actual)


@proves("speechbrain_2276")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.FastSpeech2Encoder, enc_d_model=C)
    ids, kept = torch.randint(1, 40, (B, T)) * REAL, REAL[..., None].double()
    angles = torch.arange(T).double()[:, None] * 10000.0 ** -(torch.arange(0.0, C, 2) / C).double()
    x = m.encPreNet(ids) + torch.cat([angles.sin(), angles.cos()], -1)
    return m(ids), m.encoder[0](x * kept, ~REAL) * kept


@proves("retnet_10")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiScaleRetention, C, H, chunk_size=2), tokens()
    distances, outs = torch.arange(T)[:, None] - torch.arange(T), []
    for r in m.retentions:
        decay = torch.where(CAUSAL, r.gamma ** distances.clamp(min=0).double(), 0.0)
        outs.append(((x @ r.W_Q) @ (x @ r.W_K).mT * decay) @ (x @ r.W_V))
    y = m.group_norm(torch.cat(outs, -1).flatten(0, 1)).unflatten(0, (B, T))
    return m(x), (F.silu(x @ m.W_G) * y) @ m.W_O


@proves("transformers_26428")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.IdeficsGatedCrossAttentionLayer, C, H, C), tokens()
    images, shown = tokens(B, 2, 3, C), torch.arange(T)[:, None] >= torch.tensor([2, 4])
    y, states, a = m.input_layernorm(x), images.flatten(1, 2), m.cross_attn
    late = attended(
        a.q_proj(y[:, 2:]),
        a.k_proj(states),
        a.v_proj(states),
        shown[2:].repeat_interleave(3, 1),
    )
    context = torch.cat([torch.zeros_like(y[:, :2]), a.o_proj(late)], 1)
    x_ = x + m.alpha_cross_attn.tanh() * context
    expected = x_ + m.alpha_dense.tanh() * m.mlp(m.post_attention_layernorm(x_))
    return m(x, images, shown.expand(B, T, 2)), expected


@proves("zml_763")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SelfAttn, C, H, 2, 3), tokens()
    q, k, v = heads(m.q_proj(x)), heads(m.k_proj(x), 2), heads(m.v_proj(x), 2)
    keep = CAUSAL.triu(-2)
    context = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, enable_gqa=True)
    return m(x)[0], m.o_proj(merged(context))


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
