"""What `MultiHeadAttention` asks of its arguments, kept apart so that it stays one screen."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.masks import Dense, Mask
from heedful.nn.cache import KVCache
from heedful.nn.rotary import RotaryEmbedding
from heedful.textbook.checks import check_sizes


def size_of_heads(d_model: int, num_heads: int) -> int:
    """The features of each head, where the heads share d_model evenly."""
    if d_model % num_heads:
        raise ArgumentError(
            "d_model",
            expected=f"a multiple of num_heads={num_heads}",
            received=repr(d_model),
            remedy="Or pass head_dim: heads may have any size.",
        )
    return d_model // num_heads


def check_groups(num_heads: int, num_kv_heads: int) -> None:
    """Raise `ArgumentError` unless each key/value head serves as many query heads."""
    if num_heads % num_kv_heads:
        raise ArgumentError(
            "num_kv_heads",
            expected=f"a divisor of num_heads={num_heads}",
            received=repr(num_kv_heads),
            remedy="Each key/value head serves num_heads / num_kv_heads query heads.",
        )


def check_rotary(rotary: RotaryEmbedding | None, head_dim: int) -> None:
    """Raise `ArgumentError` unless the rotary embedding is for heads of this size."""
    if rotary is not None and rotary.head_dim != head_dim:
        raise ArgumentError(
            "rotary",
            expected=f"RotaryEmbedding({head_dim}), of the heads' size",
            received=f"RotaryEmbedding({rotary.head_dim})",
            remedy="Queries and keys are turned head by head.",
        )


def check_window(window: int | None, causal: bool) -> None:
    """Raise `ArgumentError` unless the window, if any, counts keys of a causal module."""
    if window is None:
        return
    check_sizes(window=window)
    if not causal:
        raise ArgumentError(
            "window",
            expected="None in a module that is not causal: a window ends at the token itself",
            received=repr(window),
            remedy="Pass each call mask=Band(before, after).",
        )


def check_cross_attention(rotary: RotaryEmbedding | None, window: int | None) -> None:
    """Raise `ArgumentError` for what needs one row of positions for queries and keys alike."""
    for name, option in (("rotary", rotary), ("window", window)):
        if option is not None:
            raise ArgumentError(
                name,
                expected="None with d_context: x and the context do not share positions",
                received=repr(option),
                remedy="Give it to the self-attention beside this module.",
            )


def check_call(
    d_model: int, d_context: int | None, x: Tensor, context: Tensor | None, cache: KVCache | None
) -> None:
    """Raise `ArgumentError` unless the call is one of self-attention, or of cross-attention, as the module is."""
    check_tokens("x", x, d_model, "d_model")
    if d_context is not None:
        check_context(x, context, d_context)
        check_no_cache(cache)
    elif context is not None:
        raise ArgumentError(
            "context",
            expected="None: this module is self-attention",
            received=f"shape {tuple(context.shape)}",
            remedy=f"For cross-attention build it with d_context={context.shape[-1]}.",
        )


def check_tokens(name: str, tokens: Tensor, features: int, argument: str) -> None:
    if tokens.dim() not in (2, 3) or tokens.shape[-1] != features:
        raise ArgumentError(
            name,
            expected=f"shape (B, T, {features}) or (T, {features})",
            received=f"shape {tuple(tokens.shape)}",
            remedy=f"Build the module with the tokens' number of features as {argument}.",
        )


def check_context(x: Tensor, context: Tensor | None, d_context: int) -> None:
    if context is None:
        raise ArgumentError(
            "context",
            expected=f"shape (B, Tk, {d_context}): this module is cross-attention",
            received="None",
            remedy="For self-attention build it without d_context.",
        )
    check_tokens("context", context, d_context, "d_context")
    if context.shape[:-2] != x.shape[:-2]:
        raise ArgumentError(
            "context",
            expected=f"batch dimensions {tuple(x.shape[:-2])}, as x",
            received=f"shape {tuple(context.shape)}",
            remedy="Each batch entry has a context of its own; one for all is context.expand(B, -1, -1).",
        )


def check_no_cache(cache: KVCache | None) -> None:
    if cache is not None:
        raise ArgumentError(
            "cache",
            expected="None: a context does not grow from token to token",
            received="a KVCache",
            remedy="Give the cache to the self-attention beside this module.",
        )


def as_mask(mask: Mask | Tensor | None) -> Mask | None:
    """A Boolean tensor as a mask; whatever is none is an `ArgumentError`."""
    if mask is None or isinstance(mask, Mask):
        return mask
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        return Dense(mask)
    raise ArgumentError(
        "mask",
        expected="a mask such as Padding(lengths), or a Boolean tensor, True = attend",
        received=str(getattr(mask, "dtype", type(mask).__name__)),
        remedy="From one that says what is hidden, as nn.MultiheadAttention's: Dense.from_hidden(mask).",
    )
