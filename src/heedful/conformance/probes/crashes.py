"""Probe: the target runs in eval and in train mode, in float64 and in float32."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import torch

from heedful.conformance.calling import names
from heedful.conformance.calling.exceptions import (
    attempt,
    describe_exception,
    raising_line,
    unequal_sizes,
)
from heedful.conformance.calling.failures import is_refusal
from heedful.conformance.calling.mask_forms import PADDING_FORMS, in_form
from heedful.conformance.calling.masks import masks_by_name
from heedful.conformance.calling.omitted_arguments import (
    asked_for,
    may_be_none,
    optional_arguments,
)
from heedful.conformance.calling.subject import Subject
from heedful.conformance.calling.target import TargetError
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import JOINING
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding

OF_DTYPE: re.Pattern[str] = re.compile(r"bool tensor|not implemented for '(Bool|Float|Double)'")
"""What an exception says about a dtype that an operation does not take."""
OTHER_LENGTHS = (7, 9)


@probe("crashes", "mask-broadcast")
def crashes(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Run the same call, which works, in eval and in train mode, in float64 and in float32.

    What the target itself refuses is no bug, nor that it needs an optional argument which only the user knows. An
    example's tensors keep the dtype in which they were given.
    """
    B, T = evidence.inputs.sizes
    omitted = _omitted(evidence)
    dtypes = (evidence.subject.dtype, torch.float32)
    for dtype in dtypes[:1] if evidence.subject.convention.guessed else dtypes:
        for train in (False, True):
            error = attempt(lambda dtype=dtype, train=train: _run(evidence, dtype, train))
            if not isinstance(error, Exception) or is_refusal(error):
                continue
            if isinstance(error, TargetError):
                raise error  # the call works, but what it returns is not understood
            if asked_for(error, omitted) is not None:
                continue
            mode, dtype_name = "train" if train else "eval", str(dtype).removeprefix("torch.")
            yield Finding(
                "undefined-or-global-name" if isinstance(error, NameError) else "crashes",
                "bug",
                f"In {mode} mode with {dtype_name} tokens, the target raises {describe_exception(error)}",
                f"B = {B}, T = {T}",
                raising_line(error),
            )
            return
    yield from _crashes_with_lengths(evidence)
    yield from _keys_without_mask(evidence)


def _crashes_with_lengths(evidence: Evidence) -> Iterator[Finding]:
    """Give the number of real tokens of each sequence to an argument that is named after it.

    An operation that its dtype does not allow is the target's own, whose mask is made of the lengths.
    """
    subject, (B, T) = evidence.subject, evidence.inputs.sizes
    given = subject.arguments(evidence.inputs)
    optional = optional_arguments(subject.target) - given.keys()
    for name in (it for it in sorted(optional) if it.endswith(names.VALID_LENGTHS)):
        with_lengths = {**given, name: torch.full((B,), T)}
        error = attempt(lambda it=with_lengths: subject.call(it, evidence.inputs))
        if isinstance(error, RuntimeError) and OF_DTYPE.search(str(error)):
            yield Finding(
                "crashes",
                "bug",
                f"With {name}, the number of tokens of each sequence, the target raises {describe_exception(error)}",
                f"B = {B}, T = {T}",
                raising_line(error),
            )


def _keys_without_mask(evidence: Evidence) -> Iterator[Finding]:
    """Give a mask of the tokens to an argument that takes none: keys that the target adds may be missing in it.

    Callers may be meant to add them, if a mask with entries for all keys works.
    """
    subject = evidence.subject
    if subject.padding is not None or subject.attention_mask is not None or not subject.batched:
        return
    for name in (it for it in masks_by_name(subject) if it not in subject.convention.constants):
        for form in PADDING_FORMS:
            errors = {T: _error_with_mask(subject, name, form, T) for T in OTHER_LENGTHS}
            sizes = {T: {*(unequal_sizes(it) or ())} for T, it in errors.items() if it is not None}
            added = {max(it) - T for T, it in sizes.items() if T in it and len(it) == 2}
            (T, error) = next(iter(errors.items()))
            if len(sizes) < len(errors) or len(added) != 1 or min(added) < 1 or error is None:
                continue
            place = _line_adding(evidence, min(added))
            if place is None:
                continue
            whole = (_error_with_mask(subject, name, it, T, min(added)) for it in PADDING_FORMS)
            yield Finding(
                "mask-broadcast",
                "suspicious" if None in whole else "bug",
                f"With {name}, which has an entry for each of {T} tokens, the target raises "
                f"{describe_exception(error)}: it adds {min(added)} to the tokens, and nothing to the mask.",
                f"T = {T}, {name} {form}",
                place,
                "Add entries to the mask where rows are added to the tokens.",
            )
            return


def _line_adding(evidence: Evidence, rows: int) -> SourceLine | None:
    """Return the line that joins a number of rows to the tokens."""
    T = evidence.inputs.sizes[1]
    joins = (it for it in evidence.baseline.trace if it.operation in JOINING)
    return SourceLine.of(next((it for it in joins if T + rows in it.shape), None))


def _error_with_mask(
    subject: Subject, name: str, form: str, T: int, added: int = 0
) -> Exception | None:
    """Return the exception of a call with a mask that shows all tokens and added keys; None if there is none."""
    inputs = subject.draw(B := 2, T)
    visible = torch.ones(1, T, T + added, dtype=torch.bool)
    mask = in_form(form, visible, B)
    given = {**subject.arguments(inputs), name: mask}
    error = attempt(lambda: subject.call(given, inputs))
    return error if isinstance(error, Exception) else None


def _omitted(evidence: Evidence) -> set[str]:
    """Return the arguments, None by default, that are not given, and that the code does not compare with None."""
    target, given = evidence.subject.target, evidence.subject.arguments(evidence.inputs)
    omitted = optional_arguments(target) - given.keys()
    return {name for name in omitted if not may_be_none(target, name)}


def fresh_subject(evidence: Evidence, dtype: torch.dtype, train: bool) -> tuple[Subject, Inputs]:
    """Return the subject on a fresh copy of the target, in one dtype and one mode, and the sample in that dtype."""
    inputs = evidence.inputs
    if not inputs.vocabulary:
        arguments = {name: tensor.to(dtype) for name, tensor in inputs.arguments.items()}
        inputs = replace(inputs, arguments=arguments)
    return evidence.subject.fresh(dtype=dtype, train=train), inputs


def _run(evidence: Evidence, dtype: torch.dtype, train: bool) -> None:
    """Run a fresh copy of the target, in one dtype and one mode."""
    subject, inputs = fresh_subject(evidence, dtype, train)
    subject.run(inputs)
