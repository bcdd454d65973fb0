"""Which arguments of an example hold tokens, and the layouts that these may have."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heedful.conformance.calling import names
from heedful.conformance.calling.axes import has_rows_of_columns, layouts_by_behavior, mixing_axes
from heedful.conformance.calling.convention import SIGNAL, TOKEN_AXES, CallingConvention
from heedful.conformance.calling.layouts import likely_layouts, takes_feature_maps
from heedful.conformance.calling.target import Target
from heedful.observation.leaves import leaves_of

NO_TOKENS = ("mask", "pos", "bias", "cos", "sin", "freq", "rotary")  # parts of names


def leaves_by_name(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of all arguments by name, such as "x" and "state[0]"."""
    return {
        f"{name}{path}": leaf
        for name, value in arguments.items()
        for path, leaf in leaves_of(value)
    }


def first_tokens(target: Target, arguments: Mapping[str, Any]) -> str | None:
    """Return the name of the first argument that may hold tokens, or of such a leaf within an argument.

    A state (B, C) before tokens (B, T, C) of the same width holds none, nor does a single query (B, 1, C).
    """
    embeds = any(
        isinstance(part, nn.Embedding)
        for part in (() if target.module is None else target.module.modules())
    )
    found = {
        name: leaf
        for name, leaf in leaves_by_name(arguments).items()
        if _may_be_tokens(leaf, embeds)
    }
    first = next(iter(found), None)
    if first is None or not found[first].is_floating_point():
        return first
    if found[first].dim() != 2 and (found[first].dim() != 3 or found[first].shape[1] != 1):
        return first
    B, C = found[first].shape[0], found[first].shape[-1]
    sequences = (
        name
        for name, it in found.items()
        if it.dim() == 3 and (it.shape[0], it.shape[2]) == (B, C) and it.shape[1] not in (1, B)
    )
    return next(sequences, first)


def _may_be_tokens(value: Any, embeds: bool) -> bool:
    """Check whether a value may hold tokens: vectors, or ids; a token may have several if they are embedded."""
    if not isinstance(value, Tensor) or value.dtype == torch.bool or value.is_complex():
        return False
    if value.is_nested:  # its sequences have lengths of their own
        return False
    if value.is_floating_point():
        return value.dim() in range(2, 7)
    return value.dim() == 2 or (value.dim() == 3 and embeds)


def token_names(target: Target, first: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arguments that take tokens: those of the first one's shape and dtype, if no name says otherwise.

    Keys and values may be of another width, and feature maps of one size may have other channels.
    """
    maps = takes_feature_maps(target.callee)
    tokens = arguments[first]
    if not tokens.is_floating_point():
        return (first,)

    def is_like_tokens(name: str, value: Any) -> bool:
        if not isinstance(value, Tensor) or value.dtype != tokens.dtype:
            return False
        if name in (*names.KEYS, *names.VALUES):
            return value.shape[:-1] == tokens.shape[:-1]
        is_map = value.dim() == tokens.dim() == 4 and maps  # with channels of its own
        channels_apart = value.shape[:1] + value.shape[2:] == tokens.shape[:1] + tokens.shape[2:]
        same_places = value.shape == tokens.shape or (is_map and channels_apart)
        return same_places and not any(part in name for part in NO_TOKENS)

    return tuple(
        name for name, value in arguments.items() if name == first or is_like_tokens(name, value)
    )


def token_layouts(
    target: Target, arguments: Mapping[str, Any], taking: tuple[str, ...]
) -> Iterator[tuple[CallingConvention, tuple[int, int]]]:
    """Yield conventions for the layouts that the tokens may have, with the batch size and the number of tokens."""
    tokens = arguments[taking[0]]
    shape = tuple(tokens.shape)
    if not tokens.is_floating_point():
        vocabulary = int(tokens.max()) + 1
        if len(shape) == 2 and has_rows_of_columns(target, arguments, shape):
            columns_first = CallingConvention("(T, B) ids", taking, (), vocabulary, pooled=True)
            yield columns_first, (shape[1], shape[0])
        layout = "(B, T) ids" if len(shape) == 2 else "(B, T, C) ids"
        yield CallingConvention(layout, taking, shape[2:], vocabulary), (shape[0], shape[1])
    elif len(shape) == 2:
        yield CallingConvention("(T, C)", taking, shape[-1:]), (1, shape[0])
    elif len(shape) == 3:
        layouts = likely_layouts(target.callee)
        likely, mixing = layouts.tokens, mixing_axes(target, arguments, taking, (0, 1))
        if mixing == {1}:
            likely = ("(B, T, C)",)
        elif mixing == {0} and not layouts.declared:
            likely = ("(T, B, C)",)
        signal = [SIGNAL] if _has_channels_first(target.module, shape) else []
        for layout in (*likely, *signal):
            yield of_layout(layout, taking, shape)
    else:
        for layout in layouts_by_behavior(target, arguments, taking):
            yield of_layout(layout, taking, shape)


def _has_channels_first(module: nn.Module | None, shape: tuple[int, ...]) -> bool:
    """Check whether a module has parameters for as many features as the second axis has, and not as the last one."""
    parameters = () if module is None else module.parameters()
    sizes = {size for parameter in parameters for size in parameter.shape}
    return shape[1] in sizes and shape[2] not in sizes


def of_layout(
    layout: str, taking: tuple[str, ...], shape: tuple[int, ...]
) -> tuple[CallingConvention, tuple[int, int]]:
    """Return a convention whose tokens have a shape in a layout, with the batch size and the number of tokens."""
    sizes = dict(zip(layout.strip("()").split(", "), shape, strict=True))
    grid = tuple(size for letter, size in sizes.items() if letter in TOKEN_AXES)
    convention = CallingConvention(layout, taking, features_of(layout, shape), grid=grid)
    return convention, (sizes["B"], math.prod(grid))


def features_of(layout: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of one token of tokens that have a shape in a layout."""
    letters = layout.partition(")")[0].strip("(").split(", ")
    others = (*TOKEN_AXES, "B")
    return tuple(size for letter, size in zip(letters, shape, strict=False) if letter not in others)
