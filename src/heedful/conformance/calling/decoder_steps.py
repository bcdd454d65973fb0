"""Read the arguments of a call as one step of a decoder: a token, a state, and an encoder's tokens, the keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

import torch
from torch import Tensor

from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.influence import influences
from heedful.conformance.calling.recurrent import recurrent_layers, state_sizes
from heedful.conformance.calling.resizing import Axes
from heedful.conformance.calling.target import Target

LAYOUTS = ("(B, T, C)", "(T, B, C)")
MAX_READINGS = 24  # ways to read the axes of all arguments that are tried
SEQUENCES, TOKENS = 3, 5


@dataclass(frozen=True)
class Reading:
    """One way to read the arguments of a call as a step of a decoder.

    Attributes:
        keys: The argument, or the leaf of one, that holds the encoder's tokens.
        layout: The layout of these tokens.
        axes: Which axes of the other arguments belong to the batch and to the tokens.
    """

    keys: str
    layout: str
    axes: Axes


def readings(target: Target, leaves: Mapping[str, Any], first: str | None) -> Iterator[Reading]:
    """Yield the ways to read a call as a step of a decoder, the most likely first; none if it has no state.

    Args:
        target: The target.
        leaves: The leaves of the arguments by name, such as "token" and "state[0]".
        first: The name of the one that would hold the tokens otherwise.
    """
    tensors = {name: it for name, it in leaves.items() if isinstance(it, Tensor)}
    states = {name for name, it in tensors.items() if _is_state(target, it)}
    alone = first is not None and tensors[first].dim() == 2 and tensors[first].is_floating_point()
    sequences = [name for name, it in tensors.items() if it.dim() == 3 and it.is_floating_point()]
    if not (states or alone):
        return
    candidates = sorted(sequences, key=lambda name: name in states)  # equal sizes may deceive
    held = [keys for keys in candidates if alone or states - {keys}]
    found = (it for keys in held for it in _of_keys(keys, tensors, states))
    yield from islice(found, MAX_READINGS)


def _is_state(target: Target, tensor: Tensor) -> bool:
    """Check whether a tensor has the shape of the state of a recurrent layer within the target.

    A target without one may be given the state of a layer outside, (1, B, C).
    """
    sizes = list(map(state_sizes, recurrent_layers(target.module)))
    if not sizes:
        return tensor.dim() == 3 and tensor.shape[0] == 1 < tensor.shape[1]
    if tensor.dim() == 2:
        return tensor.shape[-1] in {size for _, size in sizes}
    return tensor.dim() == 3 and (tensor.shape[0], tensor.shape[2]) in sizes


def _of_keys(keys: str, tensors: Mapping[str, Tensor], states: set[str]) -> Iterator[Reading]:
    """Yield the readings in which one argument holds the keys; every state has an axis of the batch."""
    shape = tensors[keys].shape
    for layout in LAYOUTS:
        B, T = shape[:2] if layout == LAYOUTS[0] else (shape[1], shape[0])
        if T == 1 or any(B not in tensors[state].shape[:2] for state in states - {keys}):
            continue
        shapes = list(dict.fromkeys(tuple(it.shape) for it in tensors.values()))
        for letters in product(*(list(_letters(other, B, T)) for other in shapes)):
            known = dict(zip(shapes, letters, strict=True))
            yield Reading(keys, layout, Axes(B, T, distances=False, known=known))


def _letters(shape: tuple[int, ...], B: int, T: int) -> Iterator[str]:
    """Yield the letters for the axes of a shape: the batch is one of the first two, and of two axes, the other one
    may be that of the tokens.
    """
    axes = [axis for axis, size in enumerate(shape[:2]) if size == B]
    for axis in axes or [None]:
        letters = [" "] * len(shape)
        if axis is not None:
            letters[axis] = "B"
        beside = 1 - axis if axis is not None and len(shape) == 2 else None
        if beside is not None and shape[beside] == T:
            letters[beside] = "T"
            yield "".join(letters)
            letters[beside] = " "
        yield "".join(letters)


def attends_to_keys(caller: Caller) -> bool:
    """Check whether the tokens reach an output whose size does not depend on their number, or is their number."""
    inputs = caller.draw(SEQUENCES, TOKENS)
    few, many = (attempt(lambda T=T: caller.run(caller.draw(SEQUENCES, T))) for T in (2, TOKENS))
    if isinstance(few, Exception) or isinstance(many, Exception):
        return False
    of_weights = few.shape[2:] == (2,) and many.shape[2:] == (TOKENS,)
    if few.shape[2:] != many.shape[2:] and not of_weights:
        return False
    return any(influences(caller, inputs, token, rows=slice(None)) for token in (0, TOKENS - 1))


def full_lengths(B: int, T: int, dtype: torch.dtype) -> Tensor:
    """Return the lengths of sequences without padding."""
    return torch.full((B,), T)
