"""Turns torch calls, as they are seen, into the steps of a trace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from heedful.observation.naming import (
    Name,
    Names,
    NamingContext,
    Part,
    assigned_variables,
    intermediate,
)
from heedful.observation.place import Place, find_place, frames_outward
from heedful.observation.provenance import Keeper, Provenance
from heedful.observation.surroundings import Surroundings
from heedful.observation.trace import Source, Step, Summary, Trace


@dataclass(frozen=True)
class Limits:
    """How much to keep: elements of one value, bytes of all values, steps."""

    largest: int
    memory: int
    steps: int


class Output(NamedTuple):
    """A tensor that a call resulted in, and which part of the result it is."""

    part: Part | None
    tensor: Tensor


@dataclass(frozen=True, eq=False)
class TorchCall:
    """A torch call just made.

    Attributes:
        operation: what it does.
        arguments, keywords: what it was given.
        taken: the tensors among these.
        written: those of them that it overwrote.
        outputs: the tensors it resulted in; what it overwrote, if it returns nothing.
    """

    operation: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    taken: list[Tensor]
    written: list[Tensor]
    outputs: list[Output]

    @property
    def in_place(self) -> bool:
        return any(output.tensor is tensor for output in self.outputs for tensor in self.written)


@dataclass
class _Draft:
    """A step in the making: later calls decide what it is called and whether it is used."""

    step: Step
    name: str
    keeper: Keeper
    used: bool


@dataclass
class _Course:
    """A line's call of something that calls torch in its turn, such as a torch module.

    What comes out at the end is what the line's variables receive, so that names given on the way
    have to be revised.
    """

    place: Place
    first_step: int
    named: list[_Draft] = field(default_factory=list)


class Ledger:
    """Keeps the steps of a recording, while it runs.

    Args:
        surroundings: the tensors and modules that are there from the start.
        limits: how much to keep.
        home: the code that records; frames from there outward are none of the callable's.
    """

    def __init__(self, surroundings: Surroundings, limits: Limits, home: CodeType) -> None:
        self._limits = limits
        self._memory_left = limits.memory
        self._home = home
        self._paths = surroundings.paths
        self._names = Names(home)
        self._provenance = Provenance()
        for tensor, source in surroundings.tensors:
            if not self._provenance.is_known(tensor):
                self._provenance.came_from(tensor, source)
        self._drafts: list[_Draft] = []
        self._dropped = 0
        self._course: _Course | None = None

    def enter(self, call: TorchCall, frame: FrameType) -> None:
        """Keep a call made in a frame or further in: its results as steps, its inputs as used."""
        if len(self._drafts) + len(call.outputs) > self._limits.steps:
            self._drop(call)
            return
        place = find_place(frame, self._home)
        again = self._goes_on_at(place)
        if not again:
            self._settle()
        sources = {id(tensor): self._sources(tensor, place) for tensor in call.taken}
        self._mark_used(source for found in sources.values() for source in found)
        if call.outputs:
            self._add(call, self._name(call, place, again), self._describe(call, place, sources))

    def close(self) -> None:
        """Give the last names, and let go of the frames that were looked at."""
        self._settle()
        self._course = None

    def last_step(self) -> str:
        """A sentence on the last step, for the note on an exception."""
        if not self._drafts:
            return "No step was recorded before this."
        draft = self._drafts[-1]
        step = draft.step
        return (
            f"The last step recorded before this is {step.index}, {draft.name!r} "
            f"({step.operation} at {step.file}:{step.line})."
        )

    def trace(self, result: object) -> Trace:
        """The finished trace of a callable that has returned a result."""

        def named(leaf: object) -> object:
            if isinstance(leaf, Source) and leaf.step is not None:
                return replace(leaf, name=self._drafts[leaf.step].name)
            return leaf

        steps = tuple(
            replace(
                draft.step,
                name=draft.name,
                inputs=tuple(named(source) for source in draft.step.inputs),
                arguments=pytree.tree_map(named, draft.step.arguments),
                keywords=pytree.tree_map(named, draft.step.keywords),
                unused=not (draft.used or draft.keeper.holds()),
            )
            for draft in self._drafts
        )
        return Trace(steps, result, self._dropped)

    def _drop(self, call: TorchCall) -> None:
        self._dropped += len(call.outputs)
        for tensor in call.taken:
            if self._provenance.is_known(tensor):
                self._mark_used(self._provenance.sources(tensor))

    def _add(self, call: TorchCall, names: list[Name], description: dict[str, Any]) -> None:
        first = len(self._drafts)
        for output, name in zip(call.outputs, names, strict=True):
            tensor = output.tensor
            step = Step(
                index=len(self._drafts),
                name="",
                shape=_shape(tensor),
                dtype=tensor.dtype,
                value=self._value(tensor),
                call=first,
                unused=True,
                **description,
            )
            keeper = Keeper(tensor, in_place=call.in_place)
            # What leaves a function transform is another tensor, made where nothing is seen.
            used = is_functorch_wrapped_tensor(tensor)
            draft = _Draft(step, name.text, keeper, used)
            self._drafts.append(draft)
            if self._course is not None and name.direct:
                self._course.named.append(draft)
            self._provenance.came_from(tensor, Source("step", "", step.index))
        for tensor in call.written:
            forgotten = self._provenance.was_written(tensor, first)
            if forgotten is not None:  # who reads it can no longer be told
                self._drafts[forgotten].used = True

    def _describe(
        self, call: TorchCall, place: Place | None, sources: dict[int, tuple[Source, ...]]
    ) -> dict[str, Any]:
        """What all results of a call have in common."""

        def source_of(leaf: object) -> object:
            return sources[id(leaf)][-1] if isinstance(leaf, Tensor) else leaf

        return {
            "operation": call.operation,
            "file": None if place is None else place.file,
            "line": None if place is None else place.line,
            "source": "" if place is None else place.source,
            "function": "" if place is None else place.function,
            "module": None if place is None else self._module_around(place.frame),
            "inputs": tuple(dict.fromkeys(it for found in sources.values() for it in found)),
            "arguments": pytree.tree_map(source_of, call.arguments),
            "keywords": pytree.tree_map(source_of, call.keywords),
            "in_place": call.in_place,
        }

    def _name(self, call: TorchCall, place: Place | None, again: bool) -> list[Name]:
        if self._course is not None and again:
            for draft in self._course.named:
                draft.name = intermediate(draft.name, draft.step.operation)
            self._course.named = []
        elif place is not None:
            self._course = _Course(place, first_step=len(self._drafts))
        context = NamingContext(call.operation, call.in_place, place)
        return [self._names.name(context, output.part, again=again) for output in call.outputs]

    def _goes_on_at(self, place: Place | None) -> bool:
        """Whether a place is within the call of the line that was seen last."""
        if place is None or self._course is None or place.callee is None:
            return False
        return place.callee is self._course.place.callee

    def _settle(self) -> None:
        """Look at what the last line's variables really hold, once its call is over.

        That a torch module's results are unpacked, `context, _ = self.attention(x)`, says nothing
        on which of its steps made them.
        """
        if self._course is None or self._course.place.callee is None:
            return
        for variable in assigned_variables(self._course.place):
            value = self._course.place.frame.f_locals.get(variable)
            if isinstance(value, Tensor) and self._provenance.is_known(value):
                origin = self._provenance.sources(value)[0]
                if origin.step is not None and origin.step >= self._course.first_step:
                    self._drafts[origin.step].name = variable

    def _sources(self, tensor: Tensor, place: Place | None) -> tuple[Source, ...]:
        if not self._provenance.is_known(tensor):
            if is_functorch_wrapped_tensor(tensor):
                return self._sources(get_unwrapped(tensor), place)
            self._provenance.came_from(tensor, Source("constant", _name_outside(tensor, place)))
        return self._provenance.sources(tensor)

    def _mark_used(self, sources: Iterable[Source]) -> None:
        for source in sources:
            if source.step is not None:
                self._drafts[source.step].used = True

    def _module_around(self, frame: FrameType) -> str | None:
        """The path of the module whose method a frame runs or was called by."""
        for outer in frames_outward(frame, self._home):
            if outer.f_code.co_varnames[:1] == ("self",):
                owner = outer.f_locals.get("self")
                if isinstance(owner, nn.Module):
                    return self._paths.get(id(owner), type(owner).__name__)
        return None

    def _value(self, tensor: Tensor) -> Tensor | Summary:
        if not _is_readable(tensor):
            return Summary(_shape(tensor), tensor.dtype)
        size = tensor.numel() * tensor.element_size()
        if tensor.numel() > self._limits.largest or size > self._memory_left:
            return Summary.of(tensor.detach())
        self._memory_left -= size
        return tensor.detach().clone()


def _is_readable(tensor: Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and not tensor.is_meta
        and not tensor.is_nested
        and not isinstance(tensor, FakeTensor)
        and not is_functorch_wrapped_tensor(tensor)
    )


def _shape(tensor: Tensor) -> tuple[int, ...]:
    """The shape; of a nested tensor -1 for all dimensions but the first."""
    if tensor.is_nested:
        return (tensor.size(0), *[-1] * (tensor.dim() - 1))
    return tuple(tensor.shape)


def _name_outside(tensor: Tensor, place: Place | None) -> str:
    """The variable through which code reaches a tensor that nobody introduced."""
    if place is not None:
        for variables in (place.frame.f_locals, place.frame.f_globals):
            for name, value in variables.items():
                if value is tensor:
                    return name
    return "constant"
