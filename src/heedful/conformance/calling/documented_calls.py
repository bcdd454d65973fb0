"""Calls with the shapes that a target's documentation gives every argument, such as "neigh: [B, S, K, C]"."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, islice, pairwise, product
from typing import Any

import torch
from torch import Tensor

from heedful.conformance.calling.declared import attribute_of
from heedful.conformance.calling.documentation import documented_arguments
from heedful.conformance.calling.failures import UNFIT_LAYER
from heedful.conformance.calling.layouts import DOCUMENTED_SHAPE, TIMES
from heedful.conformance.calling.target import Target
from heedful.conformance.calling.trial_values import BATCH, GRIDS, widths_to_try

OF_NUMBERS: re.Pattern[str] = re.compile(r"\b(long|u?int(?:\d+|eger)?s?|idx|ind(?:ex|ices)|ids?)\b")
OF_LENGTHS: re.Pattern[str] = re.compile(r"^\w*len(gth)?s?:")
OF_MASKS: re.Pattern[str] = re.compile(r"mask|\bbool|valid")
OF_ONE_AXIS: re.Pattern[str] = re.compile(r"\b[Ss]hape:? *\W?\W?[(\[](\w+)[)\]]")
OTHER_SIZES = (4, 6, 3, 9)
"""Sizes of axes of which nothing is known: neither that of the batch nor a number of tokens."""
MAX_CALLS = 400

Sizes = Mapping[str, int]
Called = Callable[[dict[str, Any]], tuple[dict[str, Any], Any]]


def documented_calls(target: Target, called: Called) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield arguments with the documented shapes, and the results of calls with them; none that fail.

    Axes with the same name have the same size. The first axis of the first argument is the batch. One of the axes that
    another one follows holds the tokens, as many as the target declares under its name or as few as in other trials;
    those that only come last hold features, as many as a layer of the target has.

    Args:
        target: The target. There is no call if a required argument has no documented shape.
        called: A function of arguments, which returns them as they were used at last, and the result or exception.
    """
    said = documented_arguments(target.callee)
    texts = {name: f"{name}: {said.get(name, '')}".lower() for name in target.required}
    shapes = {name: _shape(said.get(name, "")) for name in target.required}
    if target.module is None or not shapes or not all(shapes.values()):
        return
    masks = (
        [torch.bool, torch.float32] if any(map(OF_MASKS.search, texts.values())) else [torch.bool]
    )
    failures: list[tuple[Sizes, Exception]] = []
    for sizes in islice(_sizes(target, list(shapes.values()), failures), MAX_CALLS):
        for dtype in masks:
            arguments, result = called(
                {name: _tensor(texts[name], shape, sizes, dtype) for name, shape in shapes.items()}
            )
            if isinstance(result, Exception):
                failures.append((sizes, result))
            else:
                yield arguments, result


def _shape(text: str) -> list[str]:
    """Return the names of the axes of the first shape in a text."""
    shape = DOCUMENTED_SHAPE.search(TIMES.sub(", ", text)) or OF_ONE_AXIS.search(text)
    return [] if shape is None else [it.strip() for it in shape[1].split(",")]


def _sizes(
    target: Target, shapes: Sequence[Sequence[str]], failures: Sequence[tuple[Sizes, Exception]]
) -> Iterator[Sizes]:
    """Yield sizes for the axes: those that the target keeps under their names, and others in turn for the rest."""
    axes = dict.fromkeys(it for shape in shapes for it in shape)
    known = {it: int(it) for it in axes if it.isdecimal()} | {shapes[0][0]: BATCH}
    known |= {it: size for it in axes if it not in known and (size := _declared(target, it))}
    followed = {it for shape in shapes for it in shape[:-1]}
    tokens = [it for it in axes if it in followed and it not in known]
    features = [it for it in axes if it not in known and it not in followed]
    for widths in _widths(target, features, failures):
        for grid, one in product(GRIDS, tokens):
            others = zip((it for it in tokens if it != one), cycle(OTHER_SIZES), strict=False)
            yield {**known, **widths, **dict(others), one: math.prod(grid)}
        if not tokens:  # the target declares how many there are
            yield {**known, **widths}


def _widths(
    target: Target, features: Sequence[str], failures: Sequence[tuple[Sizes, Exception]]
) -> Iterator[Sizes]:
    """Yield sizes for axes of features: those of the target's layers, and at last one that failures ask for in all."""
    assert target.module is not None
    for chosen in product(widths_to_try(target.module), repeat=len(features)):
        yield dict(zip(features, chosen, strict=True))
    if width := _width_asked_for(features, failures):
        yield dict.fromkeys(features, width)


def _width_asked_for(axes: Sequence[str], failures: Sequence[tuple[Sizes, Exception]]) -> int:
    """Return the size of axes that would give a layer what it takes, by what two other sizes gave it; 0 if none.

    A layer may take several tensors of this size, one behind another, and others.
    """
    given: dict[int, re.Match[str]] = {}
    for sizes, error in failures:
        unfit, widths = UNFIT_LAYER.search(str(error)), {sizes[it] for it in axes}
        if unfit is not None and len(widths) == 1:
            given[widths.pop()] = unfit
    for (one, its), (other, theirs) in pairwise(given.items()):
        taken = int(its[2])
        times, rest = divmod(int(theirs[1]) - int(its[1]), other - one)
        if rest == 0 and times > 0 and (taken - int(its[1])) % times == 0:
            return max(one + (taken - int(its[1])) // times, 0)
    return 0


def _declared(target: Target, axis: str) -> int:
    """Return the number that the target keeps under the name of an axis; 0 if there is none."""
    number = attribute_of(target.module, axis)
    return number if type(number) is int and number > 0 else 0


def _tensor(text: str, axes: Sequence[str], sizes: Sizes, masks: torch.dtype) -> Tensor:
    """Return an argument of a shape, of a kind that its name and what is said of it tell."""
    shape, generator = [sizes[it] for it in axes], torch.Generator().manual_seed(0)
    if OF_LENGTHS.search(text):
        return torch.full(shape, max(set(sizes.values()) & {*map(math.prod, GRIDS)}))
    if OF_MASKS.search(text):
        return torch.ones(shape, dtype=masks)
    if OF_NUMBERS.search(text):
        return torch.randint(min(OTHER_SIZES), shape, generator=generator)
    return torch.randn(shape, generator=generator)
