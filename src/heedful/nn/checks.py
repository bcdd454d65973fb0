"""Argument checks for `MultiHeadAttention`, kept apart so that the module itself fits a screen."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.masks import Dense, Mask
from heedful.nn.cache import KVCache
from heedful.nn.rotary import RotaryEmbedding
from heedful.textbook.checks import check_sizes


def default_head_dim(d_model: int, num_heads: int) -> int:
    """Return the number of features of each head if d_model is divided evenly among them."""
    if d_model % num_heads:
        raise ArgumentError(
            "d_model",
            expected=f"a multiple of num_heads={num_heads}",
            received=repr(d_model),
            remedy="Alternatively, pass head_dim: heads may have any size.",
        )
    return d_model // num_heads


def check_groups(num_heads: int, num_kv_heads: int) -> None:
    """Raise `ArgumentError` unless each key/value head serves the same number of query heads."""
    if num_heads % num_kv_heads:
        raise ArgumentError(
            "num_kv_heads",
            expected=f"a divisor of num_heads={num_heads}",
            received=repr(num_kv_heads),
            remedy="Each key/value head serves num_heads / num_kv_heads query heads.",
        )


def check_rotary(rotary: RotaryEmbedding | None, head_dim: int) -> None:
    """Raise `ArgumentError` unless the rotary embedding has the size of the heads."""
    if rotary is not None and rotary.head_dim != head_dim:
        raise ArgumentError(
            "rotary",
            expected=f"RotaryEmbedding({head_dim}), with the size of the heads",
            received=f"RotaryEmbedding({rotary.head_dim})",
            remedy="Queries and keys are rotated separately for each head.",
        )


def check_window(window: int | None, causal: bool) -> None:
    """Raise `ArgumentError` if there is a window in a module that is not causal."""
    if window is None:
        return
    check_sizes(window=window)
    if not causal:
        raise ArgumentError(
            "window",
            expected="None in a module that is not causal, because a window ends at the token itself",
            received=repr(window),
            remedy="Pass mask=Band(before, after) to each call instead.",
        )


def check_cross_attention(rotary: RotaryEmbedding | None, window: int | None) -> None:
    """Raise `ArgumentError` for options that require queries and keys to share positions."""
    for name, option in (("rotary", rotary), ("window", window)):
        if option is not None:
            raise ArgumentError(
                name,
                expected="None with d_context, because x and the context do not share positions",
                received=repr(option),
                remedy="Pass it to the self-attention beside this module.",
            )


def check_call(
    d_model: int, d_context: int | None, x: Tensor, context: Tensor | None, cache: KVCache | None
) -> None:
    """Raise `ArgumentError` unless the arguments fit the module, which is self-attention or cross-attention."""
    check_tokens("x", x, d_model, "d_model")
    if d_context is not None:
        check_context(x, context, d_context)
        check_no_cache(cache)
    elif context is not None:
        raise ArgumentError(
            "context",
            expected="None, because this module is self-attention",
            received=f"shape {tuple(context.shape)}",
            remedy=f"For cross-attention, build it with d_context={context.shape[-1]}.",
        )


def check_tokens(name: str, tokens: Tensor, features: int, argument: str) -> None:
    """Raise `ArgumentError` unless tokens are (B, T, features) or (T, features)."""
    if tokens.dim() not in (2, 3) or tokens.shape[-1] != features:
        raise ArgumentError(
            name,
            expected=f"shape (B, T, {features}) or (T, {features})",
            received=f"shape {tuple(tokens.shape)}",
            remedy=f"Build the module with the number of features of a token as {argument}.",
        )


def check_context(x: Tensor, context: Tensor | None, d_context: int) -> None:
    """Raise `ArgumentError` unless there is a context with the features and the batch that cross-attention needs."""
    if context is None:
        raise ArgumentError(
            "context",
            expected=f"shape (B, Tk, {d_context}), because this module is cross-attention",
            received="None",
            remedy="For self-attention, build it without d_context.",
        )
    check_tokens("context", context, d_context, "d_context")
    if context.shape[:-2] != x.shape[:-2]:
        raise ArgumentError(
            "context",
            expected=f"batch dimensions {tuple(x.shape[:-2])}, as x",
            received=f"shape {tuple(context.shape)}",
            remedy="Each batch entry has its own context. To use one for all, pass context.expand(B, -1, -1).",
        )


def check_no_cache(cache: KVCache | None) -> None:
    """Raise `ArgumentError` if cross-attention receives a cache."""
    if cache is not None:
        raise ArgumentError(
            "cache",
            expected="None, because the context does not grow from token to token",
            received="a KVCache",
            remedy="Pass the cache to the self-attention beside this module.",
        )


def as_mask(mask: Mask | Tensor | None) -> Mask | None:
    """Return a Boolean tensor as a mask, and a mask or None as it is.

    Raises:
        ArgumentError: the argument is none of these.
    """
    if mask is None or isinstance(mask, Mask):
        return mask
    if isinstance(mask, Tensor) and mask.dtype == torch.bool:
        return Dense(mask)
    raise ArgumentError(
        "mask",
        expected="a mask such as Padding(lengths), or a Boolean tensor, True = attend",
        received=str(getattr(mask, "dtype", type(mask).__name__)),
        remedy="Use Dense.from_hidden(mask) for a tensor that is True for hidden keys, as in nn.MultiheadAttention.",
    )
