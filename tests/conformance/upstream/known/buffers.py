"""Known bugs of tensors that are no buffers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from upstream.cases import Case, sizes
from upstream.proofs import B, C, H, made, proves, tokens


def _steps() -> tuple[Any, ...]:
    """Return two series of 4 observed steps and 3 steps to forecast."""
    return (torch.randn(2, 7, 16),)


def _queries_keys_values() -> tuple[Any, ...]:
    """Return a list of queries, keys and values."""
    return ([torch.randn(2, 6, 16) for _ in range(3)],)


CASES = (
    Case(
        "opennmt_240",
        "TransformerDecoderLayer",
        "OpenNMT/OpenNMT-py#240",
        "mask-not-a-buffer",
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
        "music_transformer_13",
        "RelativeGlobalAttention",
        "jason9693/MusicTransformer-pytorch#13",
        "table-not-a-buffer",
        options=sizes(h=4, d=16, max_seq=16),
        example=_queries_keys_values,
    ),
)


@proves("opennmt_240")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module.TransformerDecoderLayer, C, H).to("meta")
    return torch.tensor(float(m.mask.is_meta)), torch.tensor(1.0)


@proves("darts_3053")
def _(module: Any) -> tuple[Tensor, Tensor]:
    m = made(module._TFTModule, 4, 3, C, H)
    m(tokens(B, 7, C))
    return torch.tensor(float(m.to("meta").attention_mask.is_meta)), torch.tensor(1.0)


@proves("music_transformer_13")
def _(module: Any) -> tuple[Tensor, Tensor]:
    saved, loaded = (made(module.RelativeGlobalAttention, H, C, 8) for _ in range(2))
    loaded.load_state_dict(saved.state_dict())
    inputs = [tokens(), tokens(), tokens()]
    return loaded(inputs)[0], saved(inputs)[0]
