"""Further held-out bugs of public projects: re-created without running the check or reading it, as the first were."""

from __future__ import annotations

from typing import Any

import torch
from upstream.cases import Case, sizes


def _points() -> tuple[Any, ...]:
    """Return the features of 6 points of two clouds, and their coordinates."""
    return torch.randn(2, 6, 16), torch.randn(2, 6, 3)


def _globe() -> tuple[Any, ...]:
    """Return two signals on a grid of 4 latitudes and 6 longitudes."""
    return (torch.randn(2, 16, 4, 6),)


def _edges() -> tuple[Any, ...]:
    """Return the features of 5 nodes and the sources and targets of 8 edges."""
    edges = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 4], [1, 2, 3, 4, 0, 2, 4, 1]])
    return torch.randn(5, 16), edges


def _residues() -> tuple[Any, ...]:
    """Return two proteins of 5 residues, their pairs, and the frames of the residues."""
    rotations = torch.linalg.qr(torch.randn(2, 5, 3, 3)).Q
    return torch.randn(2, 5, 16), torch.randn(2, 5, 5, 16), rotations, torch.randn(2, 5, 3)


def _captions() -> tuple[Any, ...]:
    """Return the states of a decoder after the words of two captions, and where there is a word."""
    return torch.randn(2, 6, 16), torch.arange(6) < torch.tensor([[6], [4]])


def _people() -> tuple[Any, ...]:
    """Return noisy origins and goals of up to 6 people, the steps, the scenes and the numbers of people."""
    return torch.rand(2, 6, 4), torch.tensor([3, 7]), torch.randn(2, 16), torch.tensor([6, 4])


def _clips() -> tuple[Any, ...]:
    """Return the frames of two clips, one after the other, and how many there are of each."""
    return torch.randn(17, 32), torch.tensor([10, 7])


def _sentences() -> tuple[Any, ...]:
    """Return two sentences of 6 words."""
    return (torch.randint(1, 20, (2, 6)),)


def _places_and_prompt() -> tuple[Any, ...]:
    """Return 6 places of two images, and 5 tokens of the image prompt with 4 of a face."""
    return torch.randn(2, 6, 16), torch.randn(2, 9, 12)


def _episodes() -> tuple[Any, ...]:
    """Return 6 steps of two episodes, steps first."""
    return (torch.randn(6, 2, 16),)


def _pyramid() -> tuple[Any, ...]:
    """Return 5 queries, their reference points, and feature maps of 4 × 6 and 2 × 3 places."""
    shapes = torch.tensor([[4, 6], [2, 3]])
    return torch.randn(2, 5, 16), torch.rand(2, 5, 2, 2), torch.randn(2, 30, 16), shapes


def _channels() -> tuple[Any, ...]:
    """Return the features of 5 channels, and their values at 8 steps."""
    return torch.randn(2, 5, 16), torch.randn(2, 5, 8)


def _pairs_of_sentences() -> tuple[Any, ...]:
    """Return two pairs of sentences of 7 words together, and which sentence each word belongs to."""
    return torch.randint(0, 20, (2, 7)), (torch.arange(7) > 3).long().expand(2, 7)


NEW_HELD_OUT = (
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
        "invariant_point_attention_1",
        "InvariantPointAttention",
        "lucidrains/invariant-point-attention#1",
        "scale-missing",
        known_as=("scale-wrong",),
        options=sizes(dim=16, heads=2, scalar_key_dim=8, scalar_value_dim=8),
        example=_residues,
    ),
    Case(
        "set_transformer_18",
        "SAB",
        "juho-lee/set_transformer#18",
        "scale-wrong",
        options=sizes(dim_in=32, dim_out=32, num_heads=4),
    ),
    Case(
        "recnet_13",
        "LocalReconstructor",
        "hobincar/RecNet#13",
        "mask-fill-too-small",
        known_as=("mask-after-softmax", "mask-unused", "padding-leak", "rows-not-normalised"),
        options=sizes(feat_size=12, hidden_size=16, bottleneck_size=8),
        example=_captions,
    ),
    Case(
        "dnabert_102",
        "BertLayer",
        "jerryji1993/DNABERT#102",
        "mask-fill-too-small",
        known_as=("mask-unused", "padding-leak"),
    ),
    Case(
        "crowd_behavior_11",
        "EmitterDenoiser",
        "InhwanBae/Crowd-Behavior-Generation#11",
        "mask-inverted",
        known_as=("padding-leak",),
        options=sizes(),
        example=_people,
    ),
    Case(
        "qwen3_asr_103",
        "AudioEncoder",
        "QwenLM/Qwen3-ASR#103",
        "window-missing",
        known_as=("mask-unused", "batch-mixed"),
        options=sizes(),
        example=_clips,
    ),
    Case(
        "bilstm_attn_3",
        "bilstm_attn",
        "u784799i/biLSTM_attn#3",
        "batch-mixed",
        known_as=("softmax-wrong-dim", "heads-mixed-split"),
        options=sizes(output_size=3, hidden_size=8, vocab_size=20, embed_dim=12),
        example=_sentences,
    ),
    Case(
        "stableanimator_111",
        "AnimationIDAttention",
        "Francis-Rings/StableAnimator#111",
        "projection-unused",
        options=sizes(hidden_size=16, cross_attention_dim=12, heads=4),
        example=_places_and_prompt,
    ),
    Case(
        "beat_transformer_18",
        "DilatedSelfAttention",
        "zhaojw1998/Beat-Transformer#18",
        "group-order",
        known_as=("projection-unused", "weights-wrong"),
        options=sizes(dmodel=32),
    ),
    Case(
        "torch_harmonics_221",
        "AttentionS2",
        "NVIDIA/torch-harmonics#221",
        "dropout-in-eval",
        options=sizes(in_channels=16, num_heads=4, in_shape=(4, 6), drop_rate=0.1),
        example=_globe,
    ),
    Case(
        "transformers_rl_7",
        "StableTransformerXL",
        "dhruvramani/Transformers-RL#7",
        "cache-mismatch",
        options={"causal": True, **sizes(d_input=16, n_heads=2, d_head_inner=8)},
        example=_episodes,
    ),
    Case(
        "deformable_detr_7",
        "MSDeformAttn",
        "fundamentalvision/Deformable-DETR#7",
        "context-wrong",
        known_as=("weights-wrong",),
        options=sizes(d_model=16, n_levels=2, n_heads=2, n_points=2),
        example=_pyramid,
    ),
    Case(
        "lalamo_200",
        "Attention",
        "trymirai/lalamo#200",
        "cache-mismatch",
        known_as=("causal-alignment", "window-missing", "window-off-by-one"),
        options={
            "causal": True,
            "window": 3,
            **sizes(model_dim=32, num_heads=4, num_groups=2, head_dim=8, sliding_window_size=3),
        },
    ),
    Case(
        "duet_6",
        "ChannelEncoderLayer",
        "decisionintelligence/DUET#6",
        "projection-unused",
        known_as=("weights-wrong",),
        options=sizes(seq_len=8, d_model=16, n_heads=4),
        example=_channels,
    ),
    Case(
        "d2l_2121",
        "BERTEncoder",
        "d2l-ai/d2l-en#2121",
        "gradient-wrong",
        options=sizes(
            vocab_size=20, num_hiddens=16, ffn_num_hiddens=24, num_heads=4, num_blks=1, dropout=0.1
        ),
        example=_pairs_of_sentences,
    ),
)
