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


def _edges() -> tuple[Any, ...]:
    """Return the features of 5 nodes and the sources and targets of 8 edges."""
    edges = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 4], [1, 2, 3, 4, 0, 2, 4, 1]])
    return torch.randn(5, 16), edges


def _video() -> tuple[Any, ...]:
    """Return a video of 3 frames of 4 × 4 pixels."""
    return (torch.randn(2, 16, 3, 4, 4),)


def _graphs() -> tuple[Any, ...]:
    """Return two graphs, of 4 and 5 nodes, with the spatial encodings of all pairs of nodes."""
    return torch.randn(9, 16), torch.randn(9, 9), torch.tensor([0, 4, 9])


def _distances() -> tuple[Any, ...]:
    """Return two graphs of up to 5 nodes, with the distances of the nodes of each."""
    return torch.randn(2, 5, 16), torch.randint(-1, 4, (2, 5, 5)), torch.tensor([5, 3])


def _steps() -> tuple[Any, ...]:
    """Return two series of 4 observed steps and 3 steps to forecast."""
    return (torch.randn(2, 7, 16),)


def _history() -> tuple[Any, ...]:
    """Return the neighbors of two entities at their time steps, the entities, their relations and all embeddings."""
    neighbors = [[[1, 2, 4], [0, 3]], [[2, 0], [1], [3, 4]]]
    return (
        neighbors,
        torch.tensor([3, 1]),
        torch.tensor([0, 2]),
        torch.randn(5, 8),
        torch.randn(3, 8),
    )


def _patches() -> tuple[Any, ...]:
    """Return the class tokens and patches of two videos of 3 frames of 4 patches, and these sizes."""
    return torch.randn(2, 13, 16), 4, 3


def _words() -> tuple[Any, ...]:
    """Return the embedded words of two questions, words first."""
    return (torch.randn(6, 2, 12),)


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
        "flash_linear_attention_594",
        "LinearAttention",
        "fla-org/flash-linear-attention#594",
        "rows-not-normalised",
        options={"causal": True},
    ),
    Case(
        "pytorch_geometric_224",
        "GATConv",
        "pyg-team/pytorch_geometric#224",
        "softmax-wrong-dim",
        options=sizes(in_channels=16, out_channels=8, heads=2),
        example=_edges,
    ),
    Case(
        "chinese_text_classification_10",
        "Multi_Head_Attention",
        "649453932/Chinese-Text-Classification-Pytorch#10",
        "heads-mixed-split",
        known_as=("heads-mixed-merge",),
    ),
    Case(
        "transformer_neural_network_4",
        "MultiheadAttention",
        "ajhalthor/Transformer-Neural-Network#4",
        "heads-mixed-merge",
    ),
    Case(
        "open_sora_plan_171",
        "AttnBlock3D",
        "PKU-YuanGroup/Open-Sora-Plan#171",
        "heads-mixed-split",
        known_as=("heads-mixed-merge",),
        options=sizes(in_channels=16),
        example=_video,
    ),
    Case(
        "graphormer_pyg_14",
        "GraphormerMultiHeadAttention",
        "leffff/graphormer-pyg#14",
        "mask-fill-too-small",
        known_as=("batch-mixed",),
        options=sizes(num_heads=2, dim_in=16, dim_q=8, dim_k=8),
        example=_graphs,
    ),
    Case(
        "llms_from_scratch_1061",
        "MHAPyTorchSDPAWithoutFlash",
        "rasbt/LLMs-from-scratch#1061",
        "mask-inverted",
        known_as=("future-leak",),
        options={"causal": True, **sizes(d_in=24, d_out=32, num_heads=4, context_length=16)},
    ),
    Case(
        "matchzoo_163",
        "MatchModule",
        "NTMC-Community/MatchZoo-py#163",
        "mask-fill-too-small",
        known_as=("padding-leak",),
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
        "former_10",
        "SelfAttention",
        "pbloem/former#10",
        "self-hidden",
        known_as=("output-not-finite", "nan-on-masked-rows"),
        options={"causal": True, **sizes(k=8, heads=2, mask=True)},
    ),
    Case(
        "flash_linear_attention_1266",
        "LinearAttention",
        "fla-org/flash-linear-attention#1266",
        "padding-leak",
        options={"causal": True},
    ),
    Case(
        "darts_3053",
        "_TFTModule",
        "unit8co/darts#3053",
        "mask-not-a-buffer",
        options=sizes(
            input_chunk_length=4, output_chunk_length=3, hidden_size=16, num_attention_heads=4
        ),
        example=_steps,
    ),
    Case(
        "torchtune_1803",
        "MultiHeadAttention",
        "meta-pytorch/torchtune#1803",
        "dropout-in-eval",
        options={
            "causal": True,
            **sizes(embed_dim=32, num_heads=4, num_kv_heads=2, head_dim=8, attn_dropout=0.1),
        },
    ),
    Case(
        "conformer_55",
        "MultiHeadedSelfAttentionModule",
        "sooftware/conformer#55",
        "relative-shift-wrong",
    ),
    Case(
        "vjepa2_15",
        "RoPEAttention",
        "facebookresearch/vjepa2#15",
        "rotary-mismatch",
        options=sizes(dim=48, num_heads=2, grid_size=2),
    ),
    Case(
        "lag_llama_81",
        "CausalSelfAttention",
        "time-series-foundation-models/lag-llama#81",
        "causal-alignment",
        known_as=("cache-mismatch",),
        options={"causal": True},
    ),
    Case(
        "tiny_llm_17",
        "MultiHeadAttention",
        "Mikyx-1/TinyLLM#17",
        "causal-alignment",
        known_as=("cache-mismatch", "future-leak"),
        options={"causal": True},
    ),
    Case(
        "re_net_6",
        "AttnAggregator",
        "INK-USC/RE-Net#6",
        "attention-ignored",
        known_as=("projection-unused",),
        options=sizes(h_dim=8, dropout=0.1, seq_len=4),
        example=_history,
    ),
    Case(
        "motionformer_6",
        "TrajectoryAttention",
        "facebookresearch/Motionformer#6",
        "projection-unused",
        options=sizes(dim=16, num_heads=4),
        example=_patches,
    ),
    Case(
        "olmo_521",
        "OLMoSequentialBlock",
        "allenai/OLMo#521",
        "crashes",
        options={"causal": True},
    ),
)
