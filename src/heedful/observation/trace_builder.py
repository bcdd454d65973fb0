"""Build a trace from torch calls, one call at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor

from heedful.observation.call_arguments import mapped, mapped_keywords
from heedful.observation.opening import BESIDE, OpenedAttention, OpenedStep
from heedful.observation.reachable import ReachableTensors
from heedful.observation.roles import roles_of
from heedful.observation.source_location import SourceLocation, find_location, frames_outward
from heedful.observation.step import Source, Step
from heedful.observation.step_names import (
    CallContext,
    StepName,
    StepNames,
    TupleItem,
    assigned_variables,
    intermediate_name,
)
from heedful.observation.summary import Summary
from heedful.observation.tensor_origins import TensorLiveness, TensorOrigins
from heedful.observation.trace import Trace


@dataclass(frozen=True)
class Limits:
    """Limits on what a recording keeps.

    Attributes:
        max_elements: the number of elements above which a value is kept as a summary.
        max_bytes: the number of bytes that all kept values together may take.
        max_steps: the number of steps to keep.
    """

    max_elements: int
    max_bytes: int
    max_steps: int


class CallOutput(NamedTuple):
    """A tensor that a call returned, and its position within the call's result."""

    item: TupleItem | None
    tensor: Tensor


class TorchCall(NamedTuple):
    """A torch call that has just returned.

    Attributes:
        operation: the name of the operation.
        arguments, keywords: the arguments of the call.
        inputs: the tensors among the arguments.
        written: the inputs that the call overwrote.
        outputs: the tensors that it returned or, if it returned nothing, the one that it overwrote.
        opened: the steps of the attention that it computed, if it computed a whole one.
    """

    operation: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    inputs: list[Tensor]
    written: list[Tensor]
    outputs: list[CallOutput]
    opened: OpenedAttention | None = None

    @property
    def in_place(self) -> bool:
        """True if an output is one of the overwritten inputs."""
        return any(output.tensor is tensor for output in self.outputs for tensor in self.written)


@dataclass(slots=True)
class _Draft:
    """A step that later calls may still rename or mark as used, before it is made of its fields."""

    fields: dict[str, Any]
    name: str
    liveness: TensorLiveness
    used: bool = False


@dataclass
class _LineCall:
    """A call, within one source line, of a function or module that makes several torch calls.

    The line's variables receive what the call returns in the end, so the names given to its earlier results have to be
    revised.

    Attributes:
        location: the location of the line.
        first_step: the index of the first step within the call.
        named: the steps that have received the name of one of the line's variables.
    """

    location: SourceLocation
    first_step: int
    named: list[_Draft] = field(default_factory=list)


class TraceBuilder:
    """Collects the steps of a recording while the recorded callable runs.

    Args:
        reachable: the tensors and modules that the call can reach before it starts.
        limits: the limits on what to keep.
        boundary: the code of the function that records. Its callers are not part of the recorded call.
    """

    def __init__(self, reachable: ReachableTensors, limits: Limits, boundary: CodeType) -> None:
        self._limits = limits
        self._bytes_left = limits.max_bytes
        self._boundary = boundary
        self._module_paths = reachable.module_paths
        self._names = StepNames(boundary)
        self._origins = TensorOrigins()
        for tensor, source in reachable.tensors:
            if not self._origins.is_known(tensor):
                self._origins.set_origin(tensor, source)
        self._drafts: list[_Draft] = []
        self._dropped_steps = 0
        self._line_call: _LineCall | None = None

    def add(self, call: TorchCall, frame: FrameType) -> None:
        """Add the results of a call as steps, and mark the steps that it read as used.

        Args:
            call: the call.
            frame: the frame that made it, or one that this frame called.
        """
        beside = () if call.opened is None else call.opened.steps
        if len(self._drafts) + len(beside) + len(call.outputs) > self._limits.max_steps:
            self._drop(call)
            return
        location = find_location(frame, self._boundary)
        same_line_call = self._is_in_line_call(location)
        if not same_line_call:
            self._name_assigned_variables()
        sources = {id(tensor): self._sources(tensor, location) for tensor in call.inputs}
        for input_sources in sources.values():
            self._mark_used(input_sources)
        if not call.outputs:
            return
        names = self._name_outputs(call, location, same_line_call)
        fields = self._common_fields(call, location, sources)
        if call.opened is not None:
            for step in call.opened.steps:
                self._add_beside(step, location, fields)
        first = len(self._drafts)
        self._add_outputs(call, names, fields)
        if call.opened is not None:
            self._note_context(self._drafts[first], call.opened, location)

    @property
    def room(self) -> int:
        """The number of entries, of four bytes each, that the limits leave for further values."""
        return min(self._limits.max_elements, self._bytes_left // 4)

    def knows_any(self, tensors: Iterable[Tensor]) -> bool:
        """Check whether a tensor was given to the recorded callable, or is the result of a step."""
        return any(map(self._origins.is_known, tensors))

    def finish(self) -> None:
        """Assign the last names, and release the frames that were inspected."""
        self._name_assigned_variables()
        self._line_call = None

    def describe_last_step(self) -> str:
        """Return a sentence about the last step, for the note on an exception."""
        if not self._drafts:
            return "No step was recorded before this."
        name, of = self._drafts[-1].name, self._drafts[-1].fields
        return (
            f"The last step recorded before this is {of['index']}, {name!r} "
            f"({of['operation']} at {of['file']}:{of['line']})."
        )

    def build(self, result: object) -> Trace:
        """Return the trace of a callable that has returned `result`."""
        named = [Source("step", draft.name, index) for index, draft in enumerate(self._drafts)]

        def with_name(leaf: object) -> object:
            if isinstance(leaf, Source) and leaf.step is not None:
                return named[leaf.step]
            return leaf

        def step_of(draft: _Draft) -> Step:
            fields = draft.fields
            fields["name"] = draft.name
            fields["unused"] = not (draft.used or draft.liveness.is_alive())
            fields["inputs"] = mapped(with_name, fields["inputs"])
            fields["arguments"] = mapped(with_name, fields["arguments"])
            fields["keywords"] = mapped_keywords(with_name, fields["keywords"])
            if "product" in fields:
                fields["product"] = mapped(with_name, fields["product"])
            return Step(**fields)

        steps = [step_of(draft) for draft in self._drafts]
        for index, role in roles_of(steps).items():
            steps[index] = replace(steps[index], role=role)
        return Trace(tuple(steps), result, self._dropped_steps)

    # --- steps ---

    def _drop(self, call: TorchCall) -> None:
        self._dropped_steps += len(call.outputs)
        for tensor in call.inputs:
            if self._origins.is_known(tensor):
                self._mark_used(self._origins.sources(tensor))

    def _add_outputs(
        self, call: TorchCall, names: list[StepName], common_fields: dict[str, Any]
    ) -> None:
        first = len(self._drafts)
        for index, (output, name) in enumerate(zip(call.outputs, names, strict=True), first):
            tensor = output.tensor
            fields = {
                **common_fields,
                "index": index,
                "shape": _shape(tensor),
                "dtype": tensor.dtype,
                "value": self._value(tensor),
                "call": first,
            }
            liveness = TensorLiveness(tensor, in_place=common_fields["in_place"])
            # A result leaves a function transform as another tensor, created where no call is intercepted.
            draft = _Draft(fields, name.text, liveness, used=is_functorch_wrapped_tensor(tensor))
            self._drafts.append(draft)
            if self._line_call is not None and name.direct:
                self._line_call.named.append(draft)
            self._origins.set_origin(tensor, Source("step", "", index))
        for tensor in call.written:
            discarded = self._origins.add_write(tensor, first)
            if discarded is not None:  # its readers can no longer be determined
                self._drafts[discarded].used = True

    def _add_beside(
        self, opened: OpenedStep, location: SourceLocation | None, fields: dict[str, Any]
    ) -> None:
        """Add a step that was computed beside the call at a location, and mark the steps that it read as used."""
        tensors = [it for it in opened.arguments if isinstance(it, Tensor)]
        sources = {id(tensor): self._sources(tensor, location) for tensor in tensors}
        for found in sources.values():
            self._mark_used(found)
        call = TorchCall(opened.operation, opened.arguments, {}, tensors, [], [])
        index, summary = len(self._drafts), opened.summary
        own = {
            **self._common_fields(call, location, sources),
            "index": index,
            "module": fields["module"],
            "shape": _shape(opened.tensor) if summary is None else summary.shape,
            "dtype": opened.tensor.dtype,
            "value": self._value(opened.tensor) if summary is None else summary,
            "call": index,
            "role": "" if "·" in opened.name else opened.name,
            "beside": True,
            "remark": BESIDE,
        }
        liveness = TensorLiveness(opened.tensor, in_place=False)
        self._drafts.append(_Draft(own, opened.name, liveness))
        self._origins.set_origin(opened.tensor, Source("step", "", index))

    def _note_context(
        self, draft: _Draft, opened: OpenedAttention, location: SourceLocation | None
    ) -> None:
        product = tuple(self._sources(tensor, location)[-1] for tensor in opened.product)
        self._mark_used(product)
        draft.fields.update(product=product, remark=opened.remark, role="context")

    def _common_fields(
        self,
        call: TorchCall,
        location: SourceLocation | None,
        sources: dict[int, tuple[Source, ...]],
    ) -> dict[str, Any]:
        """Return the fields of `Step` that are equal for all results of a call."""

        def as_source(leaf: object) -> object:
            return sources[id(leaf)][-1] if isinstance(leaf, Tensor) else leaf

        inputs = [source for input_sources in sources.values() for source in input_sources]
        return {
            "operation": call.operation,
            "file": None if location is None else location.file,
            "line": None if location is None else location.line,
            "source": "" if location is None else location.source,
            "function": "" if location is None else location.function,
            "module": None if location is None else self._enclosing_module(location.frame),
            "inputs": tuple(dict.fromkeys(inputs)),
            "arguments": mapped(as_source, call.arguments),
            "keywords": mapped_keywords(as_source, call.keywords),
            "in_place": call.in_place,
        }

    def _enclosing_module(self, frame: FrameType) -> str | None:
        """Return the path of the module whose method the frame runs, or was called by.

        A module that is made within a call has no path: its steps belong to the one that calls it, if that has one, or
        else to the name of its class.
        """
        outside: str | None = None
        for outer in frames_outward(frame, self._boundary):
            if outer.f_code.co_varnames[:1] == ("self",):
                owner = outer.f_locals.get("self")
                if isinstance(owner, nn.Module) and id(owner) in self._module_paths:
                    return self._module_paths[id(owner)]
                if isinstance(owner, nn.Module):
                    outside = outside or type(owner).__name__
        return outside

    def _value(self, tensor: Tensor) -> Tensor | Summary:
        if not _is_readable(tensor):
            return Summary(_shape(tensor), tensor.dtype)
        size = tensor.numel() * tensor.element_size()
        if tensor.numel() > self._limits.max_elements or size > self._bytes_left:
            return Summary.of(tensor.detach())
        self._bytes_left -= size
        return tensor.detach().clone()

    # --- names ---

    def _name_outputs(
        self, call: TorchCall, location: SourceLocation | None, same_line_call: bool
    ) -> list[StepName]:
        if self._line_call is not None and same_line_call:
            for draft in self._line_call.named:
                draft.name = intermediate_name(draft.name, draft.fields["operation"])
            self._line_call.named = []
        elif location is not None:
            self._line_call = _LineCall(location, first_step=len(self._drafts))
        context = CallContext(call.operation, call.in_place, location)
        return [
            self._names.name(context, output.item, replaces_previous=same_line_call)
            for output in call.outputs
        ]

    def _is_in_line_call(self, location: SourceLocation | None) -> bool:
        """Check whether a location is within the same call of the same line as the previous one."""
        if location is None or self._line_call is None or location.callee is None:
            return False
        return location.callee is self._line_call.location.callee

    def _name_assigned_variables(self) -> None:
        """Rename the steps whose results the variables of the last line hold, now that its call has returned.

        If a line unpacks the results of a torch module, as in `context, _ = self.attention(x)`, its syntax does not
        reveal which of the module's steps made them.
        """
        line_call = self._line_call
        if line_call is None or line_call.location.callee is None:
            return
        for variable in assigned_variables(line_call.location):
            value = line_call.location.frame.f_locals.get(variable)
            if isinstance(value, Tensor) and self._origins.is_known(value):
                origin = self._origins.sources(value)[0]
                if origin.step is not None and origin.step >= line_call.first_step:
                    self._drafts[origin.step].name = variable

    # --- sources ---

    def _sources(self, tensor: Tensor, location: SourceLocation | None) -> tuple[Source, ...]:
        if not self._origins.is_known(tensor):
            if is_functorch_wrapped_tensor(tensor):
                return self._sources(get_unwrapped(tensor), location)
            self._origins.set_origin(tensor, Source("constant", _variable_of(tensor, location)))
        return self._origins.sources(tensor)

    def _mark_used(self, sources: Iterable[Source]) -> None:
        for source in sources:
            if source.step is not None:
                self._drafts[source.step].used = True


def _is_readable(tensor: Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and not tensor.is_meta
        and not tensor.is_nested
        and not isinstance(tensor, FakeTensor)
        and not is_functorch_wrapped_tensor(tensor)
    )


def _shape(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape. All dimensions of a nested tensor but the first are -1."""
    if tensor.is_nested:
        return (tensor.size(0), *[-1] * (tensor.dim() - 1))
    return tuple(tensor.shape)


def _variable_of(tensor: Tensor, location: SourceLocation | None) -> str:
    """Return the variable that holds a tensor of unknown origin at a location, or "constant" if none does."""
    if location is not None:
        for variables in (location.frame.f_locals, location.frame.f_globals):
            for name, value in variables.items():
                if value is tensor:
                    return name
    return "constant"
