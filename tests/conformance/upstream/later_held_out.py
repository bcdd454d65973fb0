"""Further held-out bugs of public projects, written later than those of `held_out.py` and under the same rule."""

from __future__ import annotations

from typing import Any

import torch
from upstream.cases import Case, sizes


def _image() -> tuple[Any, ...]:
    """Return two feature maps of 4 × 4 pixels."""
    return (torch.randn(2, 16, 4, 4),)


def _faces() -> tuple[Any, ...]:
    """Return the features of two pairs of faces and the colors of the second face of each pair."""
    return torch.randn(2, 16, 4, 4), torch.randn(2, 16, 4, 4), torch.randn(2, 3, 4, 4)


def _sentences() -> tuple[Any, ...]:
    """Return 3 sentences of 6 words, words first."""
    return (torch.randint(0, 20, (6, 3)),)


def _passages() -> tuple[Any, ...]:
    """Return two passages of 7 words, and a summary of the question to each."""
    return torch.randn(2, 7, 16), torch.randn(2, 16)


LATER_HELD_OUT = (
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
        "double_attention_net_3",
        "DoubleAtten",
        "gjylt/DoubleAttentionNet#3",
        "softmax-wrong-dim",
        options=sizes(in_c=16),
        example=_image,
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
        "r_net_8",
        "PointerNet",
        "localminimum/R-net#8",
        "softmax-wrong-dim",
        known_as=("rows-not-normalised",),
        options=sizes(size=16, attn_size=8),
        example=_passages,
    ),
    Case(
        "performer_pytorch_40",
        "SelfAttention",
        "lucidrains/performer-pytorch#40",
        "rows-not-normalised",
        options={"causal": True, **sizes(dim=32, heads=4, dim_head=8)},
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
)
"""The bugs that were re-created last, without running the check; they guide no change of it."""
