"""Argument checks for the textbook's modules, kept apart so that each module fits a screen."""

from __future__ import annotations

from torch import Tensor

from heedful.errors import ArgumentError


def check_sizes(**sizes: int) -> None:
    """Raise `ArgumentError` unless every size is an integer of at least 1."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ArgumentError(
                name,
                expected="a whole number of at least 1",
                received=repr(size),
                remedy=f"Pass {name} as a positive int.",
            )


def check_dropout(dropout: float) -> None:
    """Raise `ArgumentError` unless `dropout` is a probability. NaN is not."""
    if not isinstance(dropout, int | float) or not 0.0 <= dropout <= 1.0:
        raise ArgumentError(
            "dropout",
            expected="a probability in [0, 1]",
            received=repr(dropout),
            remedy="Pass 0.0 for no dropout.",
        )


def check_heads(d_out: int, num_heads: int) -> None:
    """Raise `ArgumentError` unless the heads divide the `d_out` features evenly."""
    if d_out % num_heads:
        raise ArgumentError(
            "d_out",
            expected=f"a multiple of num_heads={num_heads}",
            received=repr(d_out),
            remedy="d_out is the width of all heads together: choose d_out = num_heads * head size.",
        )


def check_input(x: Tensor, d_in: int, context_length: int | None = None) -> None:
    """Raise `ArgumentError` unless x is (B, T, d_in) or (T, d_in), with T up to `context_length`."""
    shape = tuple(x.shape)
    if len(shape) not in (2, 3) or shape[-1] != d_in:
        raise ArgumentError(
            "x",
            expected=f"shape (B, T, {d_in}) or (T, {d_in}): one row of d_in={d_in} features per token",
            received=f"shape {shape}",
            remedy="Embed the tokens first, and build the module with the embedding's width as d_in.",
        )
    if context_length is not None and shape[-2] > context_length:
        raise ArgumentError(
            "x",
            expected=f"at most context_length={context_length} tokens",
            received=f"{shape[-2]} tokens (shape {shape})",
            remedy="Pass fewer tokens, or build the module with a larger context_length.",
        )
