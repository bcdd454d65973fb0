"""Probe: a mask that hides nothing, by what the documentation says of its values, changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from heedful.conformance.calling.documentation import documented_arguments
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.mask_forms import ATTENTION_FORMS, PADDING_FORMS
from heedful.conformance.calling.masks import masks_by_name
from heedful.conformance.calling.polarity import documented_polarity
from heedful.conformance.calling.roles import AllVisible
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
    """Return whether a mask of ones, or of zeros, changes the output in every form; None if no call works."""
    inputs, before = evidence.inputs, evidence.baseline.output
    calls = (
        attempt(lambda given=given: evidence.subject.call(given, inputs).detach())
        for given in _calls_with(evidence, name, ones=ones)
    )
    outputs = [it for it in calls if isinstance(it, Tensor) and it.shape == before.shape]
    return all(differing_entries(it, before).any() for it in outputs) if outputs else None


def _calls_with(evidence: Evidence, name: str, *, ones: bool) -> Iterator[dict[str, Any]]:
    """Yield the arguments of calls with a mask of ones, or of zeros, in each form and as numbers or Booleans."""
    subject, (B, T) = evidence.subject, evidence.inputs.sizes
    for form, dtype in product(FORMS, (torch.float32, torch.bool)):
        mask = AllVisible(form, dtype, true_keeps=ones)(B, T, subject.dtype)
        yield {**subject.arguments(evidence.inputs), name: mask}


def _line_reading(evidence: Evidence, name: str) -> SourceLine | None:
    """Return the first line that computes something from the mask in a call."""
    for given in _calls_with(evidence, name, ones=True):
        record = partial(evidence.subject.record_call, given, evidence.inputs)
        observed = attempt(record)
        for step in () if isinstance(observed, Exception) else observed.trace:
            if any(it.kind == "input" and it.name == name for it in step.inputs):
                return SourceLine.of(step)
    return None
