"""Where a run on a part of the tokens departs from the run on all of them."""

from __future__ import annotations

from collections import Counter

from torch import Tensor

from heedful.conformance.changes import ancestors, differing
from heedful.conformance.subject import Observation
from heedful.observation import Step


def first_departure(whole: Observation, part: Observation, start: int, upto: Step) -> Step | None:
    """The first step of a part that holds other values than the same step of the whole does for these tokens.

    Args:
        whole: a run on T tokens.
        part: a run on n of them, from `start` on, with a cache.
        start: how many tokens came before.
        upto: the step of the part whose ancestors are looked at.
    """
    same = _twins(whole, part)
    T, n = whole.inputs.sizes[1], part.inputs.sizes[1]
    for index in sorted(ancestors(part.trace.steps, upto)):
        twin, step = same.get(index), part.trace[index]
        if twin is None or not isinstance(twin.value, Tensor) or not isinstance(step.value, Tensor):
            continue
        expected = rows_of(twin.value, step.value, T, start, start + n)
        if expected is not None and differing(expected, step.value).any():
            return step
    return None


def rows_of(whole: Tensor, part: Tensor, T: int, start: int, stop: int) -> Tensor | None:
    """The entries of a whole run's tensor that a part's should equal; None where their shapes do not fit."""
    if whole.dim() != part.dim() or whole.dtype != part.dtype:
        return None
    for axis, (size, wanted) in enumerate(zip(whole.shape, part.shape, strict=True)):
        if size == wanted:
            continue
        if size != T or wanted not in (stop - start, stop):
            return None
        whole = whole.narrow(axis, start if wanted == stop - start else 0, wanted)
    return whole


def _twins(whole: Observation, part: Observation) -> dict[int, Step]:
    """For each step of the part, the step of the whole on the same line: of several, the same one in order."""
    numbered = {}
    seen: Counter = Counter()
    for step in whole.trace:
        key = (step.file, step.line, step.operation)
        numbered[*key, seen[key]] = step
        seen[key] += 1
    found = {}
    seen = Counter()
    for step in part.trace:
        key = (step.file, step.line, step.operation)
        if (twin := numbered.get((*key, seen[key]))) is not None:
            found[step.index] = twin
        seen[key] += 1
    return found
