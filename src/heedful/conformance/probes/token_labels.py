"""Follow the tokens of a projection through the views after it, by labels in place of their features."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.conformance.recording.dataflow import CONVOLUTIONS, JOINING, TEMPLATED, VIEWS
from heedful.observation import Source, Step

REPLAYED: frozenset[str] = VIEWS - JOINING - TEMPLATED - {"rearrange", "to"}
"""The views that can be repeated by their names and arguments."""

RESIZING: tuple[str, ...] = ("view", "reshape", "flatten", "unflatten")


def tearing_view(path: list[Step]) -> Step | None:
    """Return the view that spreads the features of one token over rows that also hold those of others.

    Along some axis of the operand, all entries must belong to one token, or those of a whole token must lie in a line.

    Args:
        path: The steps from a projection to an operand of a product.

    Returns:
        The first view after which no axis is such a one; None if the operand is right, or if it is not only rearranged.
    """
    if not path or path[0].operation not in (*CONVOLUTIONS, "linear"):
        return None
    labels, torn = _labels(path[0]), None
    for step, rearranged in zip(path[1:], _rearranged(labels, path) or (), strict=False):
        together = _holds_tokens_together(rearranged, labels)
        torn = None if together else torn or step
    return torn


def displacing_view(path: list[Step], tokens: int) -> Step | None:
    """Return the view after which the row of a token holds other tokens in other heads.

    Args:
        path: The steps from a projection of tokens (…, T, C) to an operand of a product.
        tokens: The number of tokens T.

    Returns:
        The last view that gives the axes other sizes; None if some axis has one token at each index, or none has as
        many rows as there are tokens.
    """
    if len(path) < 2 or path[0].operation != "linear" or path[0].shape[-2:-1] != (tokens,):
        return None
    rearranged = _rearranged(_labels(path[0]) % tokens, path)
    if rearranged is None:
        return None
    labels = rearranged[-1]
    rows = [
        labels.movedim(n, 0).flatten(1) for n, size in enumerate(labels.shape) if size == tokens
    ]
    if not rows or any((it == it[:, :1]).all() for it in rows):
        return None
    return next((it for it in reversed(path) if it.operation in RESIZING), path[-1])


def scattering_view(path: list[Step], grid: tuple[int, ...], rows: int) -> Step | None:
    """Return the view after which rows that are compared hold pixels that make up no lines of the image.

    Attention along one axis of an image folds the other one into the features, so that each row is a line of pixels.

    Args:
        path: The steps from a projection of the image to an operand of a product.
        grid: The height and width of the image.
        rows: The number of rows that are compared.

    Returns:
        The last view; None if each row is a rectangle of pixels, or if the operand is not only rearranged.
    """
    if len(path) < 2 or len(grid) != 2 or path[0].operation not in (*CONVOLUTIONS, "linear"):
        return None
    shape = path[0].shape
    if (shape[2:] if path[0].operation in CONVOLUTIONS else shape[1:-1]) != grid:
        return None
    rearranged = _rearranged(_labels(path[0]), path)
    if rearranged is None:
        return None
    views = [it for it in path[1:] if it.operation in RESIZING]
    labels = rearranged[-1]
    axes = [axis for axis, size in enumerate(labels.shape) if axis and size == rows]
    apart = [axis for axis in axes if all(_is_rectangle(row, grid) for row in labels.unbind(axis))]
    return views[-1] if views and axes and not apart else None


def _is_rectangle(labels: Tensor, grid: tuple[int, ...]) -> bool:
    """Check whether some pixels of the first image are all those in some of its lines and columns."""
    pixels = labels.unique()
    pixels = pixels[pixels < grid[0] * grid[1]]
    lines, columns = (pixels // grid[1]).unique(), (pixels % grid[1]).unique()
    return len(pixels) == len(lines) * len(columns)


def _labels(projection: Step) -> Tensor:
    """Return a number for each token in place of its features."""
    axis = 1 if projection.operation in CONVOLUTIONS else -1
    shape = list(projection.shape)
    features, shape[axis] = shape[axis], 1
    count = torch.Size(shape).numel()
    return torch.arange(count).reshape(shape).repeat_interleave(features, axis)


def _rearranged(labels: Tensor, path: list[Step]) -> list[Tensor] | None:
    """Return what the steps after the first one of a path make of its labels; None if one does not only rearrange."""
    values = {path[0].index: labels}
    for step in path[1:]:
        rearranged = _replayed(step, values)
        if rearranged is None:
            return None
        values[step.index] = rearranged
    return [values[step.index] for step in path[1:]]


def _replayed(step: Step, values: dict[int, Tensor]) -> Tensor | None:
    """Return what a step makes of labels; None if it does anything but rearrange them."""
    source = next(iter(step.arguments), None)
    if not isinstance(source, Source) or source.step not in values:
        return None
    if step.operation not in REPLAYED or len(step.inputs) != 1:
        return None
    if step.operation in ("mT", "T"):
        return getattr(values[source.step], step.operation)
    operation = getattr(values[source.step], step.operation.replace("getitem", "__getitem__"), None)
    if operation is None:
        return None
    result = operation(*step.arguments[1:], **step.keywords)
    part = result if isinstance(result, Tensor) else result[step.index - step.call]
    return part if tuple(part.shape) == step.shape else None


def _holds_tokens_together(labels: Tensor, projected: Tensor) -> bool:
    """Check whether some axis has entries of one token alone, or of whole tokens that are neighbors."""
    if not labels.numel():
        return True  # no whole block of tokens is there, for example
    first = labels == labels.flatten()[0]
    for axis in (axis for axis, size in enumerate(labels.shape) if size > 1):
        if torch.equal(labels, labels.narrow(axis, 0, 1).expand_as(labels)):
            return True
        if first.sum(axis).max() == first.sum():
            lines = labels.movedim(axis, -1).flatten(0, -2)
            if _are_neighbors(lines[(lines == labels.flatten()[0]).any(-1)].unique(), projected):
                return True
    return False


def _are_neighbors(tokens: Tensor, projected: Tensor) -> bool:
    """Check whether tokens fill a box, such as a patch of an image, in the projection that labels were made for."""
    places = torch.isin(projected, tokens).nonzero()
    sizes = places.amax(0) - places.amin(0) + 1
    return int(sizes.prod()) == len(places)
