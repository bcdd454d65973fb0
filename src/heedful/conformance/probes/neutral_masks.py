"""Probe: a mask that hides nothing, by what the documentation says of its values, changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.conformance.calling.documentation import documented_arguments
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.mask_forms import ATTENTION_FORMS, PADDING_FORMS
from heedful.conformance.calling.masks import masks_by_name
from heedful.conformance.calling.polarity import documented_polarity
from heedful.conformance.calling.roles import all_visible
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Finding

FORMS = (*PADDING_FORMS, *ATTENTION_FORMS, "(B, T, T)")


@probe("mask-inverted")
def neutral_masks(evidence: Evidence) -> Iterator[Finding]:
    """Pass masks of ones and of zeros: the one that hides nothing gives what a call without a mask does."""
    subject = evidence.subject
    said = documented_arguments(subject.target.callee)
    for name in masks_by_name(subject):
        parameter = subject.target.parameters.get(name)
        keeps = documented_polarity(said.get(name, ""))
        if parameter is None or parameter.default is not None or keeps is None:
            continue
        changes = {one: _changes(evidence, name, ones=one) for one in (True, False)}
        if changes[keeps] is True and changes[not keeps] is False:
            shown, hidden = ("ones", "zeros") if keeps else ("zeros", "ones")
            yield Finding(
                "mask-inverted",
                "bug",
                f"With {name} of {shown}, which hide nothing by its documentation, the output is another one than "
                f"without a mask; with {hidden} it is the same.",
                "",
                _line_reading(evidence, name),
                "Keep what the documentation says is kept.",
            )
            return


def _changes(evidence: Evidence, name: str, *, ones: bool) -> bool | None:
    """Return whether a mask of ones, or of zeros, changes the output in any dtype; None if no call works."""
    outputs = (
        _output(evidence, name, form, dtype, ones=ones)
        for form in FORMS
        for dtype in (torch.float32, torch.bool)
    )
    ran = [it for it in outputs if it is not None]
    if not ran:
        return None
    return all(differing_entries(it, evidence.baseline.output).any() for it in ran)


def _output(
    evidence: Evidence, name: str, form: str, dtype: torch.dtype, *, ones: bool
) -> Tensor | None:
    subject, inputs = evidence.subject, evidence.inputs
    mask = all_visible(form, dtype, true_keeps=ones)(*inputs.sizes, subject.dtype)
    given = {**subject.arguments(inputs), name: mask}
    output = attempt(lambda: subject.call(given, inputs).detach())
    same = isinstance(output, Tensor) and output.shape == evidence.baseline.output.shape
    return output if same else None


def _line_reading(evidence: Evidence, name: str) -> SourceLine | None:
    """Return the first line that computes something from the mask in a call."""
    subject, inputs = evidence.subject, evidence.inputs
    for form in FORMS:
        mask = all_visible(form, torch.float32, true_keeps=True)(*inputs.sizes, subject.dtype)
        given = {**subject.arguments(inputs), name: mask}
        observed = attempt(lambda given=given: subject.record_call(given, inputs))
        for step in () if isinstance(observed, Exception) else observed.trace:
            if any(it.kind == "input" and it.name == name for it in step.inputs):
                return SourceLine.of(step)
    return None
