"""A run on some tokens beside a run on more of them: which steps correspond, and where the two part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from heedful.conformance.recording.dataflow import tensor_of
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.inputs import Observation
from heedful.conformance.recording.source import SourceLine, call_site
from heedful.observation import Step

HUGE = 1e30
Key = tuple[str | None, int | None, str, int]


class PartialRun:
    """A run on tokens `start` to `stop`, which should repeat what a run on all of them did.

    Args:
        part: the run on some tokens, which may know of those before them, by a cache.
        whole: the run on all.
        start: the first token of `part`, as `whole` counts them.
    """

    def __init__(self, part: Observation, whole: Observation, start: int) -> None:
        self.part, self.whole, self.start = part, whole, start
        self.count = part.inputs.sizes[1]

    @property
    def stop(self) -> int:
        """The token behind the last one of `part`."""
        return self.start + self.count

    def differs(self, step: Step) -> bool | None:
        """Whether a step of `part` gave other rows than `whole` did; None where that cannot be told."""
        value, expected = tensor_of(step), self.expected(step)
        if value is None or expected is None:
            return None
        return bool(differing_entries(*(_unfilled(it) for it in (value, expected))).any())

    def matching_step(self, step: Step) -> Step | None:
        """The step of `whole` at the same line, met as often before."""
        return self._counterparts.get(self._keys[step.index])

    def expected(self, step: Step) -> Tensor | None:
        """What `whole` had in place of a step's value; None if nothing, or nothing that has tokens."""
        matching_step = self.matching_step(step)
        value = None if matching_step is None else tensor_of(matching_step)
        if value is None or value.dim() != len(step.shape) or value.dtype != step.dtype:
            return None
        T = self.whole.inputs.sizes[1]
        if T not in value.shape:
            return None
        for axis, (size, tokens) in enumerate(zip(step.shape, value.shape, strict=True)):
            if size == tokens:
                continue
            if tokens != T or size not in (self.count, self.stop):
                return None
            first = self.start if size == self.count else 0
            value = value.narrow(axis, first, size)
        return value

    def origin(self, step: Step) -> Step:
        """The step at which a difference that has reached `step` came up: all that it was made from is as expected."""
        for behind in self._behind(step, set()):
            if self.differs(behind):
                return self.origin(behind)
        return step

    def place(self, step: Step) -> SourceLine | None:
        """The line to blame for a difference that came up in a step.

        It is that of a function's call where the function does right when called from elsewhere.
        """
        same = (it for it in self.part.trace if it is not step and _place(it) == _place(step))
        if any(self.differs(it) is False for it in same):
            return call_site(self.part, step) or SourceLine.of(step)
        return SourceLine.of(step)

    def _behind(self, step: Step, seen: set[int]) -> Iterator[Step]:
        """The nearest steps behind one that can be compared."""
        for source in step.inputs:
            if source.step is None or source.step in seen:
                continue
            seen.add(source.step)
            behind = self.part.trace[source.step]
            if self.differs(behind) is None:
                yield from self._behind(behind, seen)
            else:
                yield behind

    @cached_property
    def _keys(self) -> list[Key]:
        return _keys(self.part)

    @cached_property
    def _counterparts(self) -> dict[Key, Step]:
        return dict(zip(_keys(self.whole), self.whole.trace, strict=True))


def _unfilled(tensor: Tensor) -> Tensor:
    """With infinities in place of numbers beside which all others would be rounding errors: what masks fill in."""
    if not tensor.is_floating_point():
        return tensor
    return torch.where(tensor.abs() > HUGE, tensor.sign() * torch.inf, tensor)


def _place(step: Step) -> tuple[str | None, int | None, str]:
    return step.file, step.line, step.operation


def _keys(observation: Observation) -> list[Key]:
    """Each step's line and operation, and how often these were met before."""
    met: Counter[tuple[str | None, int | None, str]] = Counter()
    found: list[Key] = []
    for step in observation.trace:
        found.append((*_place(step), met[_place(step)]))
        met[_place(step)] += 1
    return found
