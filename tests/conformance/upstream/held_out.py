"""The held-out bugs of public projects: they were re-created without running the check, and guide no change of it."""

from __future__ import annotations

from typing import Any

import torch

from upstream.cases import Case, sizes


def _edges() -> tuple[Any, ...]:
    """Return the features of 5 nodes and the sources and targets of 8 edges."""
    edges = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 4], [1, 2, 3, 4, 0, 2, 4, 1]])
    return torch.randn(5, 16), edges


HELD_OUT = (
    # --- scale -----------------------------------------------------------------------------------
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
    # --- softmax ---------------------------------------------------------------------------------
    Case("detr_247", "MHAttentionMap", "facebookresearch/detr#247", "softmax-wrong-dim"),
    Case(
        "self_attention_gan_11",
        "Self_Attn",
        "heykeetae/Self-Attention-GAN#11",
        "softmax-wrong-dim",
        options=sizes(in_dim=16, activation="relu"),
    ),
    Case(
        "catalyst_285",
        "LamaPooling",
        "catalyst-team/catalyst#285",
        "softmax-wrong-dim",
        known_as=("rows-not-normalised",),
        options=sizes(features_in=16),
    ),
    Case(
        "pytorch_geometric_224",
        "GATConv",
        "pyg-team/pytorch_geometric#224",
        "softmax-wrong-dim",
        options=sizes(in_channels=16, out_channels=8, heads=2),
        example=_edges,
    ),
    # --- heads and batch -------------------------------------------------------------------------
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
    # --- positions -------------------------------------------------------------------------------
    Case(
        "conformer_55",
        "MultiHeadedSelfAttentionModule",
        "sooftware/conformer#55",
        "relative-shift-wrong",
    ),
)
