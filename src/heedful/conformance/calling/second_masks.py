"""Required masks beside another one: a mask that is to hide nothing, and hides everything, has the other sense."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from heedful.conformance.calling import names
from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.documentation import documented_arguments
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.polarity import documented_polarity
from heedful.conformance.calling.roles import AllVisible
from heedful.conformance.recording.dataflow import FILLS, arguments_behind
from heedful.observation import Trace

SIZES = (2, 5)  # B and T of a trial


def with_second_masks(caller: Caller) -> Caller:
    """Return a caller whose masks hide nothing, if it gives several, and nothing says what True means in them.

    What True means in a single one is found by what it hides.
    """
    unsure = dict(_unsure_masks(caller))
    if len(unsure) < 2:
        return caller
    for name in _hiding_all(caller, unsure):
        turned = replace(unsure[name], true_keeps=not unsure[name].true_keeps)
        constants = {**caller.convention.constants, name: turned}
        other = replace(caller, convention=replace(caller.convention, constants=constants))
        if name not in _hiding_all(other, [name]):
            caller = other
    return caller


def _unsure_masks(caller: Caller) -> Iterator[tuple[str, AllVisible]]:
    """Yield the Boolean masks of which neither their names nor the documentation says what True means."""
    said = documented_arguments(caller.target.callee)
    for name, mask in caller.convention.constants.items():
        declared = name in names.TRUE_KEEPS or documented_polarity(said.get(name, "")) is not None
        if isinstance(mask, AllVisible) and mask.dtype == torch.bool and not declared:
            yield name, mask


def _hiding_all(caller: Caller, masks: Iterable[str]) -> list[str]:
    """Return the masks, of those given, by which every entry of a tensor is filled; all of them if the call fails."""
    inputs = caller.draw(*(caller.fixed_sizes or SIZES))
    arguments = caller.arguments(inputs)
    with torch.no_grad(), caller.isolated():
        trace = attempt(lambda: caller.trace(arguments))
    if not isinstance(trace, Trace):
        return [*masks]
    behind = set[str]()
    for step in trace:
        for source in step.inputs[1:2] if step.operation in FILLS else ():
            mask = arguments.get(source.name) if source.step is None else trace[source.step].value
            if isinstance(mask, Tensor) and bool(mask.all()):
                behind |= arguments_behind(trace.steps, source)
    return [name for name in masks if name in behind]
