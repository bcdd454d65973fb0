"""Bugs of public projects that were held out until the check was first measured on them. They have guided it since."""

from __future__ import annotations

from typing import Any

import torch
from upstream.cases import Case, sizes


def _rows() -> tuple[Any, ...]:
    """Return two tables of 3 rows of 5 fields."""
    return (torch.randint(0, 20, (2, 3, 5)),)


def _nodes_and_edges() -> tuple[Any, ...]:
    """Return two graphs of up to 6 nodes, with the features of all pairs of nodes."""
    real = torch.arange(6) < torch.tensor([[6], [4]])
    return torch.randn(2, 6, 16), torch.randn(2, 6, 6, 16), real


def _feature_map() -> tuple[Any, ...]:
    """Return two feature maps of 8 × 8 pixels."""
    return (torch.randn(2, 16, 8, 8),)


def _queries_keys_values() -> tuple[Any, ...]:
    """Return a list of queries, keys and values."""
    return ([torch.randn(2, 6, 16) for _ in range(3)],)


def _items() -> tuple[Any, ...]:
    """Return the next items of two users, their histories, and the lengths of these."""
    return torch.randn(2, 16), torch.randn(2, 5, 16), torch.tensor([5, 3])


KNOWN_LATER = (
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
        "timm_2388",
        "MultiQueryAttentionV2",
        "huggingface/pytorch-image-models#2388",
        "scale-missing",
        options=sizes(dim=16, num_heads=4, key_dim=8, value_dim=8),
    ),
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
        "recbole_1483",
        "InterestEvolvingLayer",
        "RUCAIBox/RecBole#1483",
        "rows-not-normalised",
        options=sizes(input_size=16, rnn_hidden_size=8),
        example=_items,
    ),
    Case(
        "tabformer_14",
        "TabFormerEmbeddings",
        "IBM/TabFormer#14",
        "batch-mixed",
        options=sizes(vocab_size=20, ncols=5),
        example=_rows,
    ),
    Case(
        "graph_transformer_2",
        "Attention",
        "lucidrains/graph-transformer-pytorch#2",
        "mask-broadcast",
        known_as=("crashes",),
        options=sizes(dim=16, dim_head=4, heads=4),
        example=_nodes_and_edges,
    ),
    Case(
        "s3prl_579",
        "AttentivePooling",
        "s3prl/s3prl#579",
        "mask-fill-too-small",
        known_as=("padding-leak",),
        options=sizes(input_dim=16, output_dim=8),
    ),
    Case(
        "transformers_38094",
        "Llama4TextAttention",
        "huggingface/transformers#38094",
        "mask-inverted",
    ),
    Case(
        "xformers_103",
        "ScaledDotProduct",
        "facebookresearch/xformers#103",
        "future-leak",
        known_as=("mask-unused",),
        options={"causal": True, **sizes(causal=True)},
    ),
    Case(
        "diffusers_12294",
        "QwenDoubleStreamAttention",
        "huggingface/diffusers#12294",
        "mask-unused",
        known_as=("padding-leak",),
    ),
    Case(
        "mead_baseline_679",
        "BahdanauAttention",
        "mead-ml/mead-baseline#679",
        "mask-unused",
        known_as=("padding-leak",),
    ),
    Case(
        "fairseq_3575",
        "TransformerEncoderLayer",
        "facebookresearch/fairseq#3575",
        "mask-fill-overflow",
        known_as=("crashes",),
    ),
    Case(
        "transformers_26792",
        "MistralAttention",
        "huggingface/transformers#26792",
        "window-off-by-one",
        options={"causal": True, "window": 4},
    ),
    Case(
        "resshift_81",
        "SwinTransformerBlock",
        "zsyOAOA/ResShift#81",
        "mask-broadcast",
        options=sizes(dim=16, num_heads=2, window_size=4, shift_size=2),
        example=_feature_map,
    ),
    Case(
        "saint_12",
        "Transformer",
        "somepago/saint#12",
        "dropout-unused",
        options=sizes(dim=16, depth=1, heads=4, dim_head=8, attn_dropout=0.1),
    ),
    Case(
        "open_lm_4",
        "CustomAttn",
        "mlfoundations/open_lm#4",
        "rotary-mismatch",
        known_as=("rotary-offset",),
        options={"causal": True},
    ),
    Case(
        "transformer_lens_777",
        "Attention",
        "TransformerLensOrg/TransformerLens#777",
        "cache-mismatch",
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
        "music_transformer_13",
        "RelativeGlobalAttention",
        "jason9693/MusicTransformer-pytorch#13",
        "table-not-a-buffer",
        options=sizes(h=4, d=16, max_seq=16),
        example=_queries_keys_values,
    ),
    Case(
        "megavit_17",
        "Attention",
        "kyegomez/MegaVIT#17",
        "context-wrong",
        options=sizes(dim=32, heads=4, dim_head=8),
    ),
    Case(
        "x_transformers_165",
        "Attention",
        "lucidrains/x-transformers#165",
        "undefined-or-global-name",
        known_as=("crashes",),
        options=sizes(dim=32, sparse_topk=2),
    ),
)
