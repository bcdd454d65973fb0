"""Known bugs of padded batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from upstream.cases import Case, sizes
from upstream.proofs import REAL, B, C, H, T, made, proves, tokens


def _distances() -> tuple[Any, ...]:
    """Return two graphs of up to 5 nodes, with the distances of the nodes of each."""
    return torch.randn(2, 5, 16), torch.randint(-1, 4, (2, 5, 5)), torch.tensor([5, 3])


CASES = (
    Case(
        "flash_linear_attention_1266",
        "LinearAttention",
        "fla-org/flash-linear-attention#1266",
        "padding-leak",
        options={"causal": True},
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
        "transformers_29583",
        "GPT2Attention",
        "huggingface/transformers#29583",
        "left-padding-positions",
        options={"causal": True},
    ),
    Case(
        "transformers_48028",
        "WhisperDecoder",
        "huggingface/transformers#48028",
        "left-padding-positions",
        options={"causal": True},
    ),
)


@proves("flash_linear_attention_1266")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, real = made(module.LinearAttention, C, H), tokens(), REAL.flip(1)
    alone = [m(row[None, keep])[0] for row, keep in zip(x, real, strict=True)]
    return m(x, real.long())[real], torch.cat(alone)


@proves("dgl_5476")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, dist = made(module.Graphormer, C, H), tokens(), torch.randint(-1, 4, (B, T, T))
    sizes = REAL.sum(-1)
    alone = [
        m(row[None, :n], pairs[None, :n, :n], n[None])[0]
        for row, pairs, n in zip(x, dist, sizes, strict=True)
    ]
    return m(x, dist, sizes)[REAL], torch.cat(alone)


@proves("transformers_29583")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, real = made(module.GPT2Attention, C, H), tokens(), REAL.flip(1)
    rows = [m(row[None, keep])[0] for row, keep in zip(x, real, strict=True)]
    return m(x, real.long())[real], torch.cat(rows)


@proves("transformers_48028")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m, x, real = made(module.WhisperDecoder, C, H), tokens(), REAL.flip(1)
    alone = [m(row[None, keep])[0] for row, keep in zip(x, real, strict=True)]
    return m(x, real.long())[real], torch.cat(alone)
