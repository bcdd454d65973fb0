"""How far the outputs of two definitions of an attention differ, called in the same ways."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from heedful.conformance.calling.isolation import undisturbed
from heedful.conformance.calling.subject import Subject, find_subject

ROUNDING = 1e-12
"""What float64 rounding may change in outputs of size 1."""

SIZES = ((3, 7), (2, 12))


def largest_difference(
    first: type[nn.Module], second: type[nn.Module], options: Mapping[str, Any]
) -> float:
    """Return the largest difference of the outputs in eval mode: plain, padded and with a cache.

    Both definitions are built with the same random numbers, and `options` are those of `check`. The difference is
    infinite if the second cannot be called as the first.
    """
    with undisturbed(), torch.no_grad():
        expected = list(_outputs(_subject(first, options)))
        try:
            outputs = list(_outputs(_subject(second, options)))
        except Exception:  # noqa: BLE001 - a wrong fix may fail in any way
            return math.inf
    if len(expected) != len(outputs):
        return math.inf
    differences = [
        (a - b).abs().nan_to_num(nan=math.inf).max().item() if a.shape == b.shape else math.inf
        for a, b in zip(expected, outputs, strict=True)
    ]
    return max(differences)


def _subject(target: type[nn.Module], options: Mapping[str, Any]) -> Subject:
    return find_subject(
        target, causal=options.get("causal"), arguments=options.get("arguments", {})
    )


def _outputs(subject: Subject) -> Iterator[Tensor]:
    """Yield the rows of real tokens of every kind of call."""
    for B, T in SIZES:
        inputs = subject.draw(B, T)
        yield subject.run(inputs)
        if subject.padding is not None:
            for left in (False, True):
                keep = torch.ones(B, T, dtype=torch.bool)
                keep[1, : 2 if left else T] = left is False
                keep[1, T - 2 :] = left
                yield subject.run(inputs, keep=keep)[keep]
        if subject.cache_use is not None:
            for observation in subject.run_in_chunks(inputs, (T - 3, 1, 2)):
                yield observation.output
