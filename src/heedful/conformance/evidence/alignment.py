"""The comparison of a run on some tokens with a run on all tokens, step by step.

A call with a cache repeats a part of the run on all tokens, and so does the run on a sequence without its padding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from heedful.conformance.recording.call_sites import call_site
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.observation import Step

HUGE = 1e8
"""Numbers above this are mask fills; compared with them, all other numbers are rounding errors."""

Place = tuple[str | None, int | None, str]
"""The file, line and operation of a step."""


class PartialRun:
    """A run on the tokens from `start` up to `stop`, compared with the run on all tokens.

    Args:
        part: The run on some tokens. It may know of earlier tokens by a cache.
        whole: The run on all tokens.
        start: The index in `whole` of the first token of `part`.
    """

    def __init__(self, part: Observation, whole: Observation, start: int) -> None:
        self.part: Observation = part
        self.whole: Observation = whole
        self.start: int = start
        self.count: int = part.inputs.sizes[1]

    @property
    def stop(self) -> int:
        """The index in `whole` of the token after the last one of `part`."""
        return self.start + self.count

    def differs(self, step: Step) -> bool | None:
        """Check whether a step of `part` gave other rows than in `whole`; None if they cannot be compared."""
        value, expected = tensor_of(step), self.expected(step)
        if value is None or expected is None:
            return None
        return bool(
            differing_entries(_with_infinite_fills(value), _with_infinite_fills(expected)).any()
        )

    def matching_step(self, step: Step) -> Step | None:
        """Return the step of `whole` at the same place: at the n-th visit, if `step` is at the n-th visit of it."""
        return self._whole_steps.get(self._visits[step.index])

    def expected(self, step: Step) -> Tensor | None:
        """Return the rows that `whole` has for a step of `part`.

        Return None if `whole` has no matching step, or if its value has no axis of tokens.
        """
        matching_step = self.matching_step(step)
        value = None if matching_step is None else tensor_of(matching_step)
        if value is None or value.dim() != len(step.shape) or value.dtype != step.dtype:
            return None
        T = self.whole.inputs.sizes[1]
        if T not in value.shape:
            return None
        for axis, (size, whole_size) in enumerate(zip(step.shape, value.shape, strict=True)):
            if size == whole_size:
                continue
            if whole_size != T or size not in (self.count, self.stop):
                return None
            first = self.start if size == self.count else 0
            value = value.narrow(axis, first, size)
        return value

    def origin(self, step: Step) -> Step:
        """Return the step in which a difference that has reached `step` arose: all that it reads is as in `whole`."""
        for earlier in self._comparable_inputs(step, set()):
            if self.differs(earlier):
                return self.origin(earlier)
        return step

    def place(self, step: Step) -> SourceLine | None:
        """Return the line to blame for a difference that arose in a step.

        If the same line gives the right result in another call of its function, return the line of the call.
        """
        repetitions = (
            other
            for other in self.part.trace
            if other is not step and _place(other) == _place(step)
        )
        if any(self.differs(other) is False for other in repetitions):
            return call_site(self.part, step) or SourceLine.of(step)
        return SourceLine.of(step)

    def _comparable_inputs(self, step: Step, visited: set[int]) -> Iterator[Step]:
        """Yield the nearest steps behind a step that can be compared with `whole`."""
        for source in step.inputs:
            if source.step is None or source.step in visited:
                continue
            visited.add(source.step)
            earlier = self.part.trace[source.step]
            if self.differs(earlier) is None:
                yield from self._comparable_inputs(earlier, visited)
            else:
                yield earlier

    @cached_property
    def _visits(self) -> list[tuple[Place, int]]:
        return _visits(self.part)

    @cached_property
    def _whole_steps(self) -> dict[tuple[Place, int], Step]:
        return dict(zip(_visits(self.whole), self.whole.trace, strict=True))


def _with_infinite_fills(tensor: Tensor) -> Tensor:
    """Replace very large mask fills by ±inf."""
    if not tensor.is_floating_point():
        return tensor
    return torch.where(tensor.abs() > HUGE, tensor.sign() * torch.inf, tensor)


def _place(step: Step) -> Place:
    return step.file, step.line, step.operation


def _visits(observation: Observation) -> list[tuple[Place, int]]:
    """Return the place of each step, and the number of earlier steps at that place."""
    counts: Counter[Place] = Counter()
    visits: list[tuple[Place, int]] = []
    for place in map(_place, observation.trace):
        visits.append((place, counts[place]))
        counts[place] += 1
    return visits
