"""One way to call every target: tokens in, one vector a token out, whatever the target's own way is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from heedful.conformance.calling import caches as caching
from heedful.conformance.calling.arguments import POSITIONS
from heedful.conformance.calling.convention import CallingConvention, drawn, find_convention
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.masks import find_masks, masks_told
from heedful.conformance.calling.max_length import find_max_length
from heedful.conformance.calling.runs import restored, seeded
from heedful.conformance.calling.target import Target, TargetError, target_of
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.inputs import CacheUse, Inputs, MaskArgument
from heedful.conformance.recording.observation import Observation
from heedful.observation import Trace, record
from heedful.observation.surroundings import Surroundings


def find_subject(
    target: Any,
    *,
    example: Any = None,
    causal: bool | None = None,
    cache: Any = None,
    arguments: Mapping[str, Any] = {},
) -> Subject:
    """Find out how a target is called.

    Args:
        target: a module, the class of one, or a function.
        example: inputs to learn it from; None: conventional ones are tried.
        causal: whether it is to be causal, where an argument of its calls decides; None: as it is by default.
        cache: makes an empty cache, called with (batch, capacity); None: the usual ones are tried.
        arguments: the constructor's, where the target is a class.

    Raises:
        TargetError: every way to call it fails within its own code.
        ArgumentError: it cannot be built, copied or called.
    """
    found = target_of(target, arguments)
    way, dtype = find_convention(found, example, causal)
    subject = Subject(found, way, dtype, found.copied(dtype))
    subject.max_length = find_max_length(subject)
    subject.padding, subject.attention_mask = find_masks(subject)
    subject.positions = _positions(subject)
    subject.cache_use, subject.make_cache = caching.find_cache(subject, cache)
    return subject


@dataclass(eq=False)
class Subject:
    """A target, and how to call it; made by `find_subject`. Its methods leave the copy that they run as it was.

    Attributes:
        target: as it was given.
        convention: how it takes tokens and gives rows.
        dtype: of its vectors: float64 wherever it runs in that, otherwise float32.
        callee: the copy that is run.
        max_length: the most tokens it takes; None if there is no limit.
        padding: how it is told which tokens are real; None if it cannot be.
        attention_mask: how it is told which query may see which key; None if it cannot be.
        cached: how it is given a cache; None if it has none.
        make_cache: makes an empty cache of (batch, capacity), where it is given one.
        positions: the argument that takes positions, (B, T) int64; None if there is none.
        seed: of the random numbers that a run meets.
        keep_state: whether what a run leaves behind is there for the next one.
        name: the class's or function's.
        layout: how the target takes tokens: "(B, T, C)", "(T, B, C)", "(T, C)", "(B, H, T, D)", "(B, T) ids".
        only: the B and T that it runs with, where a tensor left over in its file ties it to some; None: any.
        batched: whether it takes more than one sequence at a time.
        module, function: the copy that is run, as what it is; None for the other.
        parameters: the names of its arguments.
    """

    target: Target
    convention: CallingConvention
    dtype: torch.dtype
    callee: Any
    max_length: int | None = None
    padding: MaskArgument | None = None
    attention_mask: MaskArgument | None = None
    cache_use: CacheUse | None = None
    make_cache: Any = None
    positions: str | None = None
    seed: int = 0
    keep_state: bool = False

    def __post_init__(self) -> None:
        self.name, self.layout, self.fixed_sizes = (
            self.target.name,
            self.convention.layout,
            self.convention.fixed_sizes,
        )
        self.batched = self.layout != "(T, C)"
        self.module: nn.Module | None = self.callee if isinstance(self.callee, nn.Module) else None
        self.function: Callable[..., Any] | None = self.callee if self.module is None else None
        self.parameters = tuple(inspect.signature(self.target.forward).parameters)

    def draw(self, B: int, T: int, *, seed: int = 0, dtype: torch.dtype | None = None) -> Inputs:
        """Random tokens: standard normal vectors, or ids."""
        return drawn(self.convention, B, T, dtype or self.dtype, seed)

    def run(
        self, inputs: Inputs, *, keep: Tensor | None = None, attend: Tensor | None = None
    ) -> Tensor:
        """The output (B, T, …) in the module's current mode, with gradients.

        Args:
            inputs: what it is run on.
            keep: (B, T) Boolean, which tokens are real, given by `padding`.
            attend: (T, T) Boolean, which keys each query may see, given by `attention_mask`.

        Raises:
            ArgumentError: a mask that it cannot be told.
            TargetError: the result has no row for each token.
        """
        return self.call(self.arguments(inputs, keep, attend), inputs)

    def call(self, given: Mapping[str, Any], inputs: Inputs) -> Tensor:
        """The output of a call, given its arguments by name."""
        args, keywords = self.target.bound(given)
        with self._comparable():
            return self.rows(self.callee(*args, **keywords), inputs)

    def record(
        self, inputs: Inputs, *, keep: Tensor | None = None, attend: Tensor | None = None
    ) -> Observation:
        """The same, each step recorded."""
        given = self.arguments(inputs, keep, attend)
        with self._comparable():
            args, keywords = self.target.bound(given)
            trace = record(self.callee, *args, **keywords)
        return self.observation(inputs, given, trace)

    def run_in_chunks(
        self,
        inputs: Inputs,
        sizes: Sequence[int],
        *,
        keep: Tensor | None = None,
        unused: float | None = None,
    ) -> list[Observation]:
        """Run the tokens with a cache: so many first, so many next, …; needs `cached`.

        Args:
            inputs: all the tokens.
            sizes: of the chunks.
            keep: (B, T) Boolean, which tokens are real, given by `padding`.
            unused: what to fill the cache's slots with first; None: they are as they come.
        """
        with self._comparable():
            return caching.run_chunks(self, inputs, sizes, keep=keep, unused=unused)

    def fresh(
        self,
        *,
        dtype: torch.dtype | None = None,
        train: bool = False,
        seed: int = 0,
        keep_state: bool = False,
    ) -> Subject:
        """The same on another copy of the module as it was given: pristine state; cast, or in train mode, if asked.

        Args:
            dtype: of its vectors; None: as before.
            train: whether in train mode.
            seed: of the random numbers that every run of the copy meets.
            keep_state: whether the next run sees the state that a run leaves; otherwise each finds it pristine.
        """
        dtype = dtype or self.dtype
        callee = self.target.copied(dtype, train=train)
        return replace(self, dtype=dtype, callee=callee, seed=seed, keep_state=keep_state)

    @contextmanager
    def _comparable(self) -> Iterator[None]:
        with seeded(self.seed), nullcontext() if self.keep_state else restored(self.module):
            yield

    def arguments(
        self, inputs: Inputs, keep: Tensor | None = None, attend: Tensor | None = None
    ) -> dict[str, Any]:
        """What the target is given, by name.

        Raises:
            ArgumentError: a mask that it cannot be told.
        """
        given = self.convention.arguments(inputs)
        if (
            attend is None
            and self.convention.visible_keys is not None
            and self.attention_mask is not None
        ):
            attend = self.convention.visible_keys(inputs.sizes[1], inputs.sizes[1])
        given |= masks_told(self, inputs.sizes, keep, attend)
        if keep is not None and self.positions is not None:
            given[self.positions] = (keep.long().cumsum(-1) - 1).clamp_min(0)
        return given

    def rows(self, result: object, inputs: Inputs) -> Tensor:
        """The output (B, T, …) in a result.

        Raises:
            TargetError: there is no row for each token.
        """
        rows = self.convention.rows(result, *inputs.sizes)
        if rows is None:
            raise TargetError(f"the result has no row for each of {inputs.sizes[1]} tokens")
        return rows

    def observation(
        self, inputs: Inputs, given: Mapping[str, Any], trace: Trace, before: int = 0
    ) -> Observation:
        """What a recorded run showed; `before` counts the tokens that were in its cache already."""
        output = self.rows(trace.result, inputs).detach()
        return Observation(inputs, output, trace, self._values(given), before)

    def _values(self, given: Mapping[str, Any]) -> dict[tuple[str, str], Tensor]:
        """What no step made, under the names that the trace has for it."""
        args, keywords = self.target.bound(given)
        tensors = Surroundings(self.callee, args, keywords).tensors
        return {(source.kind, source.name): it.detach() for it, source in reversed(tensors)}


def _positions(subject: Subject) -> str | None:
    """The argument that takes positions for every token, such that 0, 1, 2, … change nothing."""
    inputs = subject.draw(2 if subject.batched else 1, 4)
    B, T = inputs.sizes
    for name in (it for it in POSITIONS if it in subject.parameters):
        with torch.no_grad():
            given = subject.arguments(inputs)
            told = given | {name: torch.arange(T).expand(B, T)}
            plain, told = (attempt(lambda it=it: subject.call(it, inputs)) for it in (given, told))
        if (
            isinstance(plain, Tensor)
            and isinstance(told, Tensor)
            and not differing_entries(plain, told).any()
        ):
            return name
    return None
