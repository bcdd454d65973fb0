"""Probe: a mask has entries for what the code adds to the tokens, such as a start token."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from heedful.conformance.calling.exceptions import attempt, describe_exception, unequal_sizes
from heedful.conformance.calling.mask_forms import PADDING_FORMS, in_form
from heedful.conformance.calling.masks import masks_by_name
from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import JOINING
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Finding

SEQUENCES, LENGTHS = 2, (7, 9)  # of the calls with a mask


@probe("mask-broadcast")
def added_rows(evidence: Evidence) -> Iterator[Finding]:
    """Give a mask of the tokens to an argument that takes none. Its size must not be that of the tokens alone.

    Callers may be meant to add entries to the mask, if one with entries for all rows works.
    """
    subject = evidence.subject
    if subject.padding is not None or subject.attention_mask is not None or not subject.batched:
        return
    for name in (it for it in masks_by_name(subject) if it not in subject.convention.constants):
        T = evidence.inputs.sizes[1]
        if any(_error_with_mask(subject, name, form, T) is None for form in PADDING_FORMS):
            continue
        for form in PADDING_FORMS:
            errors = {T: _error_with_mask(subject, name, form, T) for T in LENGTHS}
            added = {_missing_entries(error, T) for T, error in errors.items()}
            rows, (T, error) = next(iter(added)), next(iter(errors.items()))
            place = _line_adding(evidence, rows) if len(added) == 1 and rows > 0 else None
            if place is None or error is None:
                continue
            whole = [_error_with_mask(subject, name, it, T, rows) for it in PADDING_FORMS]
            yield Finding(
                "mask-broadcast",
                "suspicious" if None in whole else "bug",
                f"With {name}, which has an entry for each of {T} tokens, the target raises "
                f"{describe_exception(error)}: it adds {rows} to the tokens, and nothing to the mask.",
                f"T = {T}, {name} {form}",
                place,
                "Add entries to the mask where rows are added to the tokens.",
            )
            return


def _error_with_mask(
    subject: Subject, name: str, form: str, T: int, rows: int = 0
) -> Exception | None:
    """Return the exception of a call with a mask that shows all tokens and added rows; None if there is none."""
    inputs = subject.draw(SEQUENCES, T)
    mask = in_form(form, torch.ones(1, T, T + rows, dtype=torch.bool), SEQUENCES)
    given = {**subject.arguments(inputs), name: mask}
    error = attempt(lambda: subject.call(given, inputs))
    return error if isinstance(error, Exception) else None


def _missing_entries(error: Exception | None, T: int) -> int:
    """Return how many more entries than T an exception asks for; 0 if it does not say so."""
    sizes = {*((error and unequal_sizes(error)) or ())}
    return max(sizes) - T if len(sizes) == 2 and T in sizes else 0


def _line_adding(evidence: Evidence, rows: int) -> SourceLine | None:
    """Return the line that joins a number of rows to the tokens."""
    T = evidence.inputs.sizes[1]
    joins = (it for it in evidence.baseline.trace if it.operation in JOINING)
    return SourceLine.of(next((it for it in joins if T + rows in it.shape), None))
