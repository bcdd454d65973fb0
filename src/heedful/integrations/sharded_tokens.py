"""What a model of transformers has to be given if its tokens are sharded over ranks, checked at each attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from heedful.errors import ArgumentError
from heedful.integrations.lazy_mask import LazyMask
from heedful.masks import Grid
from heedful.sharded import Sharded, current


def check_sharded_tokens(sharded: Sharded, grid: Grid, attention_mask: Tensor | None) -> None:
    """Raise ArgumentError unless a mask is requested for the tokens of this rank, without those of a cache.

    Args:
        sharded: how tokens are sharded.
        grid: the queries and keys that the model knows.
        attention_mask: (B, tokens), the real tokens.
    """
    own, tokens = len(sharded.places), sharded.tokens
    if attention_mask is not None and attention_mask.shape[1] != tokens:
        raise ArgumentError(
            "attention_mask",
            expected=f"that of all {tokens} tokens, (B, {tokens}), within context_parallel()",
            received=f"shape {tuple(attention_mask.shape)}",
            remedy="Do not shard it. Without padding, pass none.",
        )
    if grid.Tq != own or grid.Tk not in (own, tokens) or grid.shift:
        raise ArgumentError(
            "input_ids",
            expected=f"the {own} tokens of this rank, without a cache, within context_parallel()",
            received=f"{grid.Tq} queries at position {grid.shift}, and {grid.Tk} keys",
            remedy="Pass input_ids=shard(ids, group, order, dim=1) and use_cache=False.",
        )


def check_sharded_call(mask: Tensor | None, arguments: dict[str, Any]) -> None:
    """Raise ArgumentError unless an attention has the positions of this rank's tokens, a mask made for them, no cache.

    Args:
        mask: the mask that the attention is called with.
        arguments: its other arguments, among which are the model's.
    """
    sharded = current()
    of_mask = mask.sharded if isinstance(mask, LazyMask) else sharded
    if (of_mask and of_mask.places) is not (sharded and sharded.places):
        raise ArgumentError(
            "attention_mask",
            expected="a mask that was made within the same context_parallel()",
            received=f"one that was made {'without' if of_mask is None else 'with'} a context",
            remedy="Call backward() within the context, too, if it computes layers again (gradient checkpointing).",
        )
    if sharded is None:
        return
    positions = arguments.get("position_ids")
    if not isinstance(positions, Tensor) or not _equal(positions, sharded.places):
        raise ArgumentError(
            "position_ids",
            expected="the places of this rank's tokens among all, within context_parallel()",
            received="others, as a model counts them from 0"
            if positions is not None
            else "none at the attention",
            remedy="Pass position_ids=shard(torch.arange(tokens)[None], group, order, dim=1). A model that does not "
            "hand them to its attention, and sequences packed by positions, cannot run here.",
        )
    if arguments.get("use_cache"):
        raise ArgumentError(
            "use_cache",
            expected="False within context_parallel()",
            received="True",
            remedy="A cache would have the keys of this rank only.",
        )


def _equal(positions: Tensor, places: Tensor) -> bool:
    """Check whether positions (B or 1, tokens) are these places in every sequence."""
    same_shape = positions.dim() == 2 and positions.shape[1:] == places.shape
    return same_shape and bool((positions == places.to(positions.device)).all())
