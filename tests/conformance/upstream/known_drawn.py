"""Known bugs of public projects, drawn by a hash of their names from a set that was held out until then."""

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


def _channels_last() -> tuple[Any, ...]:
    """Return two feature maps of 4 × 4 pixels, channels last."""
    return (torch.randn(2, 4, 4, 16),)


def _word_and_states() -> tuple[Any, ...]:
    """Return the last words of 2 translations, the states of the decoder, and the outputs of the encoder."""
    states = torch.randn(1, 2, 16), torch.randn(1, 2, 16)
    return torch.tensor([[3], [7]]), states, torch.randn(2, 5, 16)


KNOWN_DRAWN = (
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
        "performer_pytorch_40",
        "SelfAttention",
        "lucidrains/performer-pytorch#40",
        "rows-not-normalised",
        options={"causal": True, **sizes(dim=32, heads=4, dim_head=8)},
    ),
    Case(
        "llm_interview_note_10",
        "MutiQueryAttention",
        "wdndev/llm_interview_note#10",
        "heads-mixed-merge",
        options=sizes(hidden_size=32, num_heads=4),
    ),
    Case(
        "torchtune_21",
        "LlamaSelfAttention",
        "meta-pytorch/torchtune#21",
        "projection-unused",
        known_as=("context-wrong",),
        options={"causal": True, **sizes(embed_dim=32, num_heads=4, num_kv_heads=2)},
    ),
    Case(
        "x_transformers_352",
        "Attention",
        "lucidrains/x-transformers#352",
        "projection-unused",
        options=sizes(dim=32, dim_head=8, heads=4),
    ),
    Case(
        "hippogriff_7",
        "Attention",
        "proger/hippogriff#7",
        "window-missing",
        options={"causal": True, "window": 4, **sizes(dim=32, head_dim=8, window_size=3)},
    ),
    Case(
        "pytorch_benchmark_794",
        "MultiHeadedAttention",
        "pytorch/benchmark#794",
        "mask-fill-overflow",
        known_as=("crashes",),
        options=sizes(h=4, d_model=32),
    ),
    Case(
        "torchvision_7103",
        "WindowAttention",
        "pytorch/vision#7103",
        "dropout-in-eval",
        options=sizes(dim=16, window_size=2, num_heads=4, attention_dropout=0.1, dropout=0.1),
        example=_channels_last,
    ),
    Case(
        "tpa_4",
        "MLA",
        "tensorgi/TPA#4",
        "rotary-mismatch",
        options={"causal": True, **sizes(n_embd=32, n_head=4)},
    ),
    Case(
        "transformer_engine_536",
        "MultiheadAttention",
        "NVIDIA/TransformerEngine#536",
        "rotary-offset",
        known_as=("cache-mismatch", "stale-state"),
        options={"causal": True},
    ),
    Case(
        "ofa_254",
        "DecoderSelfAttention",
        "OFA-Sys/OFA#254",
        "cache-mismatch",
        known_as=("relative-shift-wrong", "crashes"),
        options={"causal": True},
    ),
    Case(
        "llama_899",
        "Attention",
        "meta-llama/llama#899",
        "crashes",
        known_as=("cache-mismatch", "causal-alignment"),
        options={"causal": True},
    ),
    Case(
        "attention_seq2seq_6",
        "BahdanauDecoder",
        "gabrielloye/Attention_Seq2seq-Translation#6",
        "crashes",
        known_as=("batch-mixed",),
        options=sizes(hidden_size=16, output_size=20),
        example=_word_and_states,
    ),
    Case(
        "paddlenlp_7882",
        "LlamaAttention",
        "PaddlePaddle/PaddleNLP#7882",
        "crashes",
        known_as=("length-dependent", "rotary-mismatch"),
        options={"causal": True},
    ),
    Case(
        "cmos_4",
        "WindowAttention",
        "ByChelsea/CMOS#4",
        "context-wrong",
        known_as=("heads-mixed-split", "heads-mixed-merge", "batch-mixed"),
        options=sizes(dim=16, window_size=2, num_heads=4),
        example=_image,
    ),
)
