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
    """Return the largest difference of the outputs in eval mode: plain, padded and with a cache; infinite if one fails.

    Both definitions are built with the same random numbers, and `options` are those of `check`.
    """
    with undisturbed(), torch.no_grad():
        subjects = [
            find_subject(
                target, causal=options.get("causal"), arguments=options.get("arguments", {})
            )
            for target in (first, second)
        ]
        outputs = [list(_outputs(subject)) for subject in subjects]
    if len(outputs[0]) != len(outputs[1]):
        return math.inf
    differences = [
        (a - b).abs().nan_to_num(nan=math.inf).max().item() if a.shape == b.shape else math.inf
        for a, b in zip(*outputs, strict=True)
    ]
    return max(differences)


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
