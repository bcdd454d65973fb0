"""Probe: the result of every masking step is used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from types import FunctionType

import torch

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.mask_forms import PADDING_FORMS, MaskArgument, mask_tensor
from heedful.conformance.calling.masks import said_to_be_masks
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.fused import FUSED
from heedful.conformance.probes.padded_batch import padded_run, padded_subject
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import (
    SOFTMAXES,
    steps_from_tokens,
    unused_steps,
)
from heedful.conformance.recording.forwarding import functions_given, parameter_is_read
from heedful.conformance.recording.observation import Observation
from heedful.conformance.recording.source import SourceLine, parsed
from heedful.conformance.recording.target_source import own_functions_of
from heedful.conformance.reporting.finding import ANY_CALL, Fact, Finding
from heedful.observation import Step

MASK_NAME: re.Pattern[str] = re.compile(r"mask|pad|valid|hidden|visible")
MASKING: tuple[str, ...] = ("masked_fill", "where", "masked_scatter")


@probe("mask-unused")
def unused_mask(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Search for a masking step whose result nothing uses, with and without a mask in the call."""
    steps = (step for observation in _observations(evidence) for step in observation.trace)
    for step in steps:
        if not step.unused or step.operation not in MASKING:
            continue
        in_place = "" if step.operation == "where" else f", or call {step.operation}_"
        yield Finding(
            "mask-unused",
            "bug",
            f"Nothing uses the result of {step.operation}, so the mask has no effect.",
            f"step {step.index} of the recording",
            SourceLine.of(step),
            f"{step.operation} returns a new tensor: use it{in_place}.",
        )
        return
    dropped = _dropped_result(evidence)
    if dropped is not None:
        yield dropped
    else:
        yield from _handed_to_nobody(evidence)


def _dropped_result(evidence: Evidence) -> Finding | None:
    """Report a statement that only calls a masking operation and keeps no result, even in a branch that never ran."""
    for function in own_functions_of(evidence.subject.callee):
        source = parsed(function)
        for statement in () if source is None else source.statements():
            match statement:
                case ast.Expr(ast.Call(ast.Attribute(attr=operation))) if operation in MASKING:
                    assert source is not None
                    return Finding(
                        "mask-unused",
                        "bug",
                        f"This statement drops the result of {operation}, so the mask has no effect.",
                        ANY_CALL,
                        place=source.line_of(statement),
                        remedy=f"{operation} returns a new tensor: use it, or call {operation}_.",
                    )
    return None


def _handed_to_nobody(evidence: Evidence) -> Iterator[Finding]:
    """Report a mask that the target computes from its inputs and passes to a function that does not read it."""
    steps = evidence.baseline.trace.steps
    unused, from_tokens = unused_steps(steps), steps_from_tokens(steps)
    for step in (steps[index] for index in sorted(unused & from_tokens)):
        if step.dtype != torch.bool or not MASK_NAME.search(step.name.lower()):
            continue
        for function, parameter in functions_given(evidence.subject.callee, step):
            place = _weighting_line(steps, function)
            if parameter_is_read(function, parameter) or place is None:
                continue
            yield Finding(
                "mask-unused",
                "bug",
                f"{step.name.partition('·')[0]} is computed and passed on as {parameter}, which "
                f"{function.__qualname__} does not read.",
                f"step {step.index} of the recording",
                place,
                f"Hide the scores where {parameter} says so, before their softmax.",
            )
            return


def _weighting_line(steps: Sequence[Step], function: FunctionType) -> SourceLine | None:
    """Return the line of a function on which scores become weights; None if there is none."""
    names = (function.__name__, function.__qualname__)
    weighting = (it for it in steps if it.operation in (*SOFTMAXES, FUSED) and it.function in names)
    return SourceLine.of(next(weighting, None))


def _observations(evidence: Evidence) -> Iterator[Observation]:
    """Yield the run without masks, and those with the masks that the target takes."""
    yield evidence.baseline
    padded = padded_subject(evidence)
    if padded is not None:
        yield padded_run(evidence, padded, "right")
    subject, T = evidence.subject, evidence.inputs.sizes[1]
    if subject.attention_mask is not None:
        attend = torch.ones(T, T, dtype=torch.bool).tril()
        observation = attempt(lambda: subject.record(evidence.inputs, attend=attend))
        if not isinstance(
            observation, Exception
        ):  # a target may want another form from T tokens on
            yield observation
    yield from _with_masks_by_name(evidence)


def _with_masks_by_name(evidence: Evidence) -> Iterator[Observation]:
    """Yield a run with each argument of an unknown name that is called a mask, but hides nothing."""
    subject, inputs = evidence.subject, evidence.inputs
    B, T = inputs.sizes
    found = {it.name for it in (subject.padding, subject.attention_mask) if it is not None}
    visible = torch.ones(B, T, T, dtype=torch.bool).tril()
    for name in (name for name in said_to_be_masks(subject) if name not in found):
        for argument in (MaskArgument(name, form, torch.bool, True) for form in PADDING_FORMS):
            mask = mask_tensor(argument, visible, B, subject.dtype)
            given = {**subject.arguments(inputs), name: mask}
            with subject.isolated():
                trace = attempt(lambda given=given: subject.trace(given))
            if not isinstance(trace, Exception):
                yield subject.observation(inputs, given, trace)
                break
