"""Calls of PyTorch's fused attention, which compute a whole attention in one recorded step."""

from __future__ import annotations

from math import prod
from typing import cast

import torch
from torch import Tensor

from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.recording.observation import Observation, value_of
from heedful.observation import Source, Step

FUSED = "scaled_dot_product_attention"
MULTI_HEAD = "multi_head_attention_forward"  # of nn.MultiheadAttention
DEFAULTS: dict[str, object] = {
    "query": None,
    "key": None,
    "value": None,
    "attn_mask": None,
    "dropout_p": 0.0,
    "is_causal": False,
    "scale": None,
    "enable_gqa": False,
}
"""The arguments of PyTorch's fused attention, in order, with their default values."""


def fused_arguments(step: Step) -> dict[str, object]:
    """Return the arguments of a call of PyTorch's fused attention by name, including the default ones."""
    positional = dict(zip(DEFAULTS, step.arguments, strict=False))
    return DEFAULTS | positional | dict(step.keywords)


def fused_attention(observation: Observation, step: Step) -> RecordedAttention:
    """Return the attention that a call of PyTorch's fused attention computes, with its inner tensors recomputed."""
    arguments = fused_arguments(step)
    sources = [arguments[name] for name in ("query", "key", "value")]
    tensors = [value_of(observation, source) for source in sources]
    query, key, value = (tensor for tensor in tensors if tensor is not None)
    if arguments["enable_gqa"]:
        key, value = (_repeated_heads(tensor, query.shape[-3]) for tensor in (key, value))
    scores = query @ key.mT
    logits = _logits(observation, arguments, scores, head_dim=query.shape[-1])
    # PyTorch gives a query that sees no key zero weights.
    weights = logits.softmax(-1).nan_to_num(0.0)
    leading_shape = scores.shape[:-2]
    count = prod(leading_shape)  # -1 would be ambiguous where a query has no key at all

    def flat(tensor: Tensor) -> Tensor:
        """Return a tensor as (L, …, …)."""
        rows_and_columns = tensor.shape[-2:]
        return tensor.expand(*leading_shape, *rows_and_columns).reshape(count, *rows_and_columns)

    query_source, key_source, value_source = (
        source if isinstance(source, Source) else Source("constant", "") for source in sources
    )
    return RecordedAttention(
        scores_step=step,
        context_step=step,
        softmax_step=step,
        chain=(step,),
        query=flat(query),
        key=flat(key),
        value=flat(value),
        query_source=query_source,
        key_source=key_source,
        value_source=value_source,
        scores=flat(scores),
        logits=flat(logits),
        weights=flat(weights),
        applied_weights=flat(weights),
        context=flat(cast(Tensor, step.value)),
        empty_slot_weight=flat(weights).new_zeros(flat(weights).shape[:2]),
    )


def _repeated_heads(tensor: Tensor, heads: int) -> Tensor:
    """Return keys or values with each head repeated for the query heads of its group."""
    return tensor.repeat_interleave(heads // tensor.shape[-3], dim=-3)


def _logits(
    observation: Observation, arguments: dict[str, object], scores: Tensor, head_dim: int
) -> Tensor:
    """Return the scaled and masked scores."""
    scale = arguments["scale"]
    logits = scores * (head_dim**-0.5 if scale is None else cast(float, scale))
    if arguments["is_causal"]:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        logits = logits.masked_fill(~visible, float("-inf"))
    mask = value_of(observation, arguments["attn_mask"])
    if mask is None:
        return logits
    return logits.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else logits + mask
