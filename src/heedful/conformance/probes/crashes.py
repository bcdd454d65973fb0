"""Probe: the target runs in eval and in train mode, in float64 and in float32."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from heedful.conformance.calling import names
from heedful.conformance.calling.exceptions import (
    attempt,
    describe_exception,
    raising_line,
)
from heedful.conformance.calling.failures import is_refusal
from heedful.conformance.calling.layouts import documented_axes
from heedful.conformance.calling.omitted_arguments import (
    asked_for,
    may_be_none,
    optional_arguments,
)
from heedful.conformance.calling.subject import Subject
from heedful.conformance.calling.target import TargetError
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.reporting.finding import Fact, Finding

OF_DTYPE: re.Pattern[str] = re.compile(r"bool tensor|not implemented for '(Bool|Float|Double)'")
"""What an exception says about a dtype that an operation does not take."""


@probe("crashes")
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
    yield from _crashes_with_masks(evidence)
    yield from _crashes_with_lengths(evidence)
    yield from _crashes_with_positions(evidence)


def _crashes_with_masks(evidence: Evidence) -> Iterator[Finding]:
    """Run calls with masks, which work in eval mode, in train mode: PyTorch may choose another kernel there."""
    subject, (B, T) = evidence.subject, evidence.inputs.sizes
    visible = torch.ones(T, T, dtype=torch.bool).tril()
    real = torch.arange(T).expand(B, T) < T - 1
    masks = [{"keep": real}] if subject.padding else []
    masks += [{"attend": visible}] if subject.attention_mask else []
    for mask in masks:
        error = attempt(lambda it=mask: _run(evidence, subject.dtype, True, **it))
        if not isinstance(error, Exception) or is_refusal(error) or isinstance(error, TargetError):
            continue
        if not isinstance(
            attempt(lambda it=mask: _run(evidence, subject.dtype, False, **it)), Exception
        ):
            proof = f"In train mode, with a mask that works in eval mode, the target raises {describe_exception(error)}"
            yield Finding("crashes", "bug", proof, f"B = {B}, T = {T}", raising_line(error))
            return


def _crashes_with_lengths(evidence: Evidence) -> Iterator[Finding]:
    """Give the number of real tokens of each sequence to an argument that is named after it.

    An operation that its dtype does not allow is the target's own, whose mask is made of the lengths.
    """
    B, T = evidence.inputs.sizes
    for name, error in _errors_with(evidence, torch.full((B,), T), names.VALID_LENGTHS):
        if OF_DTYPE.search(str(error)):
            proof = f"With {name}, the number of tokens of each sequence, the target raises {describe_exception(error)}"
            yield Finding("crashes", "bug", proof, f"B = {B}, T = {T}", raising_line(error))


def _crashes_with_positions(evidence: Evidence) -> Iterator[Finding]:
    """Give the position of each token, (B, T), to an argument that is documented so."""
    B, T = evidence.inputs.sizes
    positions = torch.arange(T).repeat(B, 1)
    for name, error in _errors_with(evidence, positions, names.POSITION_IDS):
        documented = next(documented_axes(evidence.subject.target.callee, name), None)
        if documented == "BT" and not is_refusal(error):
            proof = f"With {name} of the documented shape (B, T), the target raises {describe_exception(error)}"
            yield Finding("crashes", "bug", proof, f"B = {B}, T = {T}", raising_line(error))


def _errors_with(
    evidence: Evidence, value: Tensor, endings: tuple[str, ...]
) -> Iterator[tuple[str, RuntimeError]]:
    """Yield the optional arguments, of those whose names end so, with which the call raises, and what it raises."""
    given = evidence.subject.arguments(evidence.inputs)
    for name in sorted(optional_arguments(evidence.subject.target) - given.keys()):
        if name.endswith(endings):
            with_value = {**given, name: value}
            error = attempt(lambda it=with_value: evidence.subject.call(it, evidence.inputs))
            if isinstance(error, RuntimeError):
                yield name, error


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


def _run(evidence: Evidence, dtype: torch.dtype, train: bool, **masks: Tensor) -> None:
    """Run a fresh copy of the target, in one dtype and one mode, with masks as `Caller.run` takes them."""
    subject, inputs = fresh_subject(evidence, dtype, train)
    subject.run(inputs, **masks)
