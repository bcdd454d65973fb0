"""Probe: the target also runs with one head of keys and values, and with as many as of queries, and reads them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from heedful.conformance.calling.conventional import HEADS
from heedful.conformance.calling.exceptions import (
    attempt,
    describe_exception,
    raising_frame,
    raising_line,
)
from heedful.conformance.calling.failures import is_refusal
from heedful.conformance.calling.subject import Subject
from heedful.conformance.calling.target import CASTS
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.projection_names import own_name, role_of
from heedful.conformance.recording.assignments import assignment_before, variables_read
from heedful.conformance.recording.dataflow import ancestors, parameter_names
from heedful.conformance.recording.definitions import attribute_definition
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

SELECTIONS = ("getitem", "index_select", "select", "narrow")


@probe("crashes", "group-order")
def key_heads(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Build the target with one head of keys, and with as many as of queries, and run the same call.

    Sizes that should be multiplied may be equal by chance to what they are divided by, but not for every number.
    """
    subject, inputs = evidence.subject, evidence.inputs
    make, heads = subject.target.with_key_heads, evidence.expected.num_heads or HEADS
    if subject.module is None or make is None:
        return
    for count in (1, heads):
        made = attempt(partial(make, count))
        if not isinstance(made, nn.Module) or not _differ_in_heads(subject.module, made):
            continue
        target = replace(subject.target, callee=made)
        other = replace(subject, target=target, callee=CASTS[subject.dtype](made.eval()))
        error = attempt(partial(other.run, inputs))
        line = raising_line(error) if isinstance(error, Exception) else None
        if isinstance(error, Exception) and subject.convention.guessed:
            continue  # the guess may not fit so many heads
        if isinstance(error, Exception) and not is_refusal(error) and line is not None:
            yield Finding(
                "crashes",
                "bug",
                f"With {count} heads of keys and values, the target raises {describe_exception(error)}",
                "B = {}, T = {}".format(*inputs.sizes),
                _line_creating(made, error) or line,
            )
            return
        unread = None if isinstance(error, Exception) else _unread_head(other, inputs)
        if unread is not None:
            name, place = unread
            yield Finding(
                "group-order",
                "bug",
                f"With {count} heads of keys and values, no query reads some rows of {name}: its heads are not shared "
                "among the query heads in order.",
                "B = {}, T = {}".format(*inputs.sizes),
                place,
            )
            return


def _unread_head(subject: Subject, inputs: Inputs) -> tuple[str, SourceLine | None] | None:
    """Return a projection of values of which some rows do not change the output, and the line that selects a head."""
    assert subject.module is not None
    for name, weight in subject.module.named_parameters():
        if weight.dim() == 2 and role_of(own_name(name)) == "value":
            read = _rows_read(subject, inputs, name)
            if 0 < read.sum() < len(read):
                return name, _line_selecting(subject.record(inputs).trace.steps, name)
    return None


def _rows_read(subject: Subject, inputs: Inputs, name: str) -> Tensor:
    """Return which rows of a parameter change the output, in a target that may run without gradients."""
    assert subject.module is not None
    output, changes = subject.run(inputs).detach(), list[bool]()
    for row in range(len(subject.module.get_parameter(name))):
        changed = subject.fresh()
        assert changed.module is not None
        with torch.no_grad():
            changed.module.get_parameter(name)[row] += 1.0
        changes.append(bool(differing_entries(changed.run(inputs).detach(), output).any()))
    return torch.tensor(changes)


def _line_selecting(steps: Sequence[Step], projection: str) -> SourceLine | None:
    """Return the line that selects a head from a projection, or that computes the number of the head before."""
    projecting = {step.index for step in steps if projection in parameter_names([step])}
    selecting = [
        step
        for step in steps
        if step.operation in SELECTIONS and projecting & ancestors(steps, step)
    ]
    for step in selecting:
        file, line = step.file or "", step.line or 0
        made = (assignment_before(file, line, it, 1) for it in variables_read(file, line))
        computed = next((it for it in made if it is not None and "//" in it.source), None)
        if computed is not None:
            return computed
    return SourceLine.of(next(iter(selecting), None))


def _differ_in_heads(one: nn.Module, other: nn.Module) -> bool:
    """Check whether two modules differ in the heads of their projections, and both take tokens of the same width.

    Another number of heads changes one side of a projection; both sides change with the width.
    """
    shapes = {name: it.shape for name, it in one.named_parameters()}
    changed = [
        sum(size != before for size, before in zip(it.shape, shapes[name], strict=False))
        for name, it in other.named_parameters()
        if name in shapes
    ]
    return any(changed) and max(changed) == 1


def _line_creating(module: nn.Module, error: Exception) -> SourceLine | None:
    """Return the line that creates the part which raises, if it is not the only one of its class."""
    frame = raising_frame(error)
    part = None if frame is None else frame.f_locals.get("self")
    paths = [path for path, it in module.named_modules() if type(it) is type(part)]
    own = next((path for path, it in module.named_modules() if it is part), "")
    return attribute_definition(module, own) if own and len(paths) > 1 else None
