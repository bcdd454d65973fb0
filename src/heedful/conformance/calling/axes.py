"""Which axes of an example's tokens hold the tokens, if there are many axes; found out by changing the example."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heedful.conformance.calling.convention import output_candidates
from heedful.conformance.calling.exceptions import exits_as_errors
from heedful.conformance.calling.isolation import seeded
from heedful.conformance.calling.layouts import likely_layouts, takes_feature_maps
from heedful.conformance.calling.resizing import copied
from heedful.conformance.calling.target import CASTS, Target
from heedful.conformance.recording.differences import differing_entries, indices_with_any

HEADS = ("(B, H, T, D)", "(B, T, H, D)")
TOKENS = ("T", "YX", "ZYX")  # letters of one, two or three axes of tokens
FEATURES, OTHERS = "C", "HPGND"  # letters of axes that hold none


def layouts_by_behavior(
    target: Target, arguments: Mapping[str, Any], taking: Sequence[str]
) -> Iterator[str]:
    """Yield the layouts that tokens of four axes or more may have, the most likely first.

    An axis holds tokens if a change at one of its indices reaches others, and if it is not the axis of the features.

    Args:
        target: The target.
        arguments: The arguments of a call that works.
        taking: The names of those that hold tokens, which have one shape.
    """
    shape = tuple(arguments[taking[0]].shape)
    features = _axis_of_features(target, shape)
    mixing = (
        set[int]()
        if features is None
        else mixing_axes(target, arguments, taking, range(1, len(shape)))
    )
    tokens = sorted(mixing - {features})
    if len(tokens) < 2 and len(shape) == 4 and features and takes_feature_maps(target.callee):
        tokens = sorted({1, 2, 3} - {features})  # even if the pixels of a row alone are mixed
    if features is not None and 0 < len(tokens) <= len(TOKENS):
        yield _layout(len(shape), tokens, features)
    elif len(shape) == 4:
        likely = likely_layouts(target.callee).heads
        yield from dict.fromkeys((likely, *HEADS))
    if features is not None and len(shape) > 4:
        pooled = _axes_left_out(_result(target, arguments), shape)
        if len(pooled) == 1 and pooled != [features]:
            yield _layout(len(shape), pooled, features)


def _axes_left_out(result: object, shape: tuple[int, ...]) -> list[int]:
    """Return the axes but the first of some tokens, each of which may be all that their result lacks."""
    output = next(output_candidates(result), torch.empty(()))
    return [n for n in range(1, len(shape)) if (*shape[:n], *shape[n + 1 :]) == output.shape]


def _layout(axes: int, tokens: Sequence[int], features: int) -> str:
    """Return a layout with the given axes of tokens and of features, and other letters for the rest."""
    letters = {0: "B", features: FEATURES} | dict(zip(tokens, TOKENS[len(tokens) - 1], strict=True))
    others = (axis for axis in range(axes) if axis not in letters)
    letters |= dict(zip(others, OTHERS, strict=False))
    return f"({', '.join(letters[axis] for axis in range(axes))})"


def _axis_of_features(target: Target, shape: tuple[int, ...]) -> int | None:
    """Return the axis whose size is that of a module's weights: the channels of an image, or the last axis.

    Channels may also come first for linear layers, which windows of an image are rearranged for, and for weights of a
    module's own.
    """
    parts = [] if target.module is None else list(target.module.modules())
    if shape[1] in {part.in_channels for part in parts if isinstance(part, nn.Conv2d | nn.Conv3d)}:
        return 1
    widths = {part.in_features for part in parts if isinstance(part, nn.Linear)}
    if shape[1] in widths and shape[-1] not in widths:
        return 1
    sizes = {size for part in parts for it in part.parameters(recurse=False) for size in it.shape}
    if shape[1] in sizes and shape[-1] not in sizes:
        return 1
    return len(shape) - 1 if shape[-1] in sizes else None


def has_rows_of_columns(
    target: Target, arguments: Mapping[str, Any], shape: tuple[int, ...]
) -> bool:
    """Check whether ids (T, B) give a row for each of their columns, and none for each of their rows."""
    result = _result(target, arguments)
    output = next(output_candidates(result), None)
    rows, columns = shape
    return output is not None and output.shape[:1] == (columns,) and rows not in output.shape


def mixing_axes(
    target: Target, arguments: Mapping[str, Any], taking: Sequence[str], axes: Iterable[int]
) -> set[int]:
    """Return those of some axes along which a change at one index reaches the others."""
    shape = arguments[taking[0]].shape
    before = _output(target, arguments, shape)
    if before is None:
        return set()
    mixing: set[int] = set()
    for axis in (axis for axis in axes if shape[axis] > 1):
        for index in (0, shape[axis] - 1):
            of_axis = (it for it in taking if arguments[it].shape[axis] == shape[axis])
            changed = {name: _changed(arguments[name], axis, index) for name in of_axis}
            after = _output(target, {**arguments, **changed}, shape)
            if after is None or after.shape != before.shape:
                continue
            reached = indices_with_any(differing_entries(before, after), axis)
            if before.shape[axis] != shape[axis] or {*reached} - {index}:
                mixing.add(axis)
    return mixing


def _changed(tokens: Tensor, axis: int, index: int) -> Tensor:
    """Return tokens with other numbers at one index of an axis."""
    tokens = tokens.detach().clone()
    part = tokens.select(axis, index)
    generator = torch.Generator().manual_seed(axis)
    part.copy_(torch.randn(part.shape, generator=generator, dtype=torch.float64))
    return tokens


def _output(target: Target, arguments: Mapping[str, Any], shape: torch.Size) -> Tensor | None:
    """Return the output of a call that has as many axes as the tokens; None if there is none."""
    outputs = output_candidates(_result(target, arguments))
    return next((it for it in outputs if it.dim() == len(shape)), None)


def _result(target: Target, arguments: Mapping[str, Any]) -> object:
    """Return what a call returns, in the arguments' own dtype; they stay as they are, also caches among them."""
    dtypes = (it.dtype for it in arguments.values() if isinstance(it, Tensor))
    callee = target.copied(next((it for it in dtypes if it in CASTS), torch.float32))
    args, keywords = target.bound({name: copied(it) for name, it in arguments.items()})
    with torch.no_grad(), exits_as_errors(), seeded():
        return callee(*args, **keywords)
