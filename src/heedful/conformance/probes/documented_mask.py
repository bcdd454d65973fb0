"""Probe: a mask may have the shape that the docstring gives it, and one of any batch is broadcast over the heads."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.conformance.calling.documentation import documented_arguments
from heedful.conformance.calling.exceptions import attempt, unfit_mask
from heedful.conformance.calling.layouts import documented_axes
from heedful.conformance.calling.mask_forms import (
    AFTER_FIRST,
    ATTENTION_FORMS,
    PADDING_FORMS,
    MaskArgument,
)
from heedful.conformance.calling.masks import masks_by_name
from heedful.conformance.calling.roles import AllVisible
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.reporting.finding import Fact, Finding

FORMS = {
    form.replace("1", "").replace(",", "").replace(" ", "").strip("()"): form
    for form in (*PADDING_FORMS[:1], *ATTENTION_FORMS[:1], "(B, T, T)")
}
"""The forms of masks by the letters of their axes, as documentation gives them."""


@probe("mask-broadcast")
def documented_mask(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Pass a mask that hides nothing, in the shape that the docstring gives it."""
    subject, B = evidence.subject, evidence.inputs.sizes[0]
    if subject.convention.from_example or not subject.batched:
        return
    for name in masks_by_name(subject):
        shapes = [shape for shape in documented_axes(subject.target.callee, name) if shape in FORMS]
        stated = documented_arguments(subject.target.callee).get(name, "")
        for shape in shapes[: 2 if " or " in stated else 1]:
            tried = [_error(evidence, name, FORMS[shape], it) for it in (torch.bool, torch.int64)]
            unfit = [unfit_mask(it) for it in tried if it is not None]
            mask = next((it for it in unfit if it is not None), None)
            if None in tried or mask is None or B not in mask.sizes:
                continue
            proof = (
                f"With {name} of the documented shape {FORMS[shape]}, it raises an exception: the mask of shape "
                f"{mask.shape} does not fit the scores, because {mask.sizes[0]} is not {mask.sizes[1]}."
            )
            yield Finding("mask-broadcast", "bug", proof, f"B = {B}", mask.place)
            return


@probe("mask-broadcast")
def mask_against_heads(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Pass masks of padding to an argument that takes none, to as many sequences as heads: each hides its own keys."""
    subject, B = evidence.subject, evidence.inputs.sizes[0]
    if subject.convention.from_example or not subject.batched or subject.padding is not None:
        return
    for name in masks_by_name(subject):
        documented = [len(axes) for axes in documented_axes(subject.target.callee, name)]
        if documented and 2 not in documented:
            continue
        for form in ("(B, T)", AFTER_FIRST) if name != _name_of(subject.attention_mask) else ():
            unfit = unfit_mask(_error(evidence, name, form, torch.bool) or Exception())
            if unfit is None or B not in unfit.sizes:
                continue
            heads = next((it for it in unfit.sizes if it != B), B)
            of_tokens = heads == evidence.inputs.sizes[1]  # another axis of a mask, and no heads
            if not of_tokens and _mixes(evidence, name, form, heads):
                proof = (
                    f"With {name} of shape {form}, a mask of shape {unfit.shape} meets the scores, and its sequences "
                    f"take the place of the heads: {B} sequences raise an exception, and with {heads}, the mask of one "
                    "changes the outputs of the others."
                )
                yield Finding("mask-broadcast", "bug", proof, f"B = {B} and {heads}", unfit.place)
                return


def _mixes(evidence: Evidence, name: str, form: str, B: int) -> bool:
    """Check whether the mask of the first of B sequences changes the outputs of the others."""
    subject, inputs = evidence.subject, evidence.subject.draw(B, evidence.inputs.sizes[1])
    mask = AllVisible(form, torch.bool, true_keeps=True)(*inputs.sizes, subject.dtype).clone()
    given = subject.arguments(inputs)
    before = attempt(lambda: subject.call({**given, name: mask.clone()}, inputs))
    mask[0, 1:] = False
    after = attempt(lambda: subject.call({**given, name: mask}, inputs))
    if not isinstance(before, Tensor) or not isinstance(after, Tensor):
        return False
    return bool(differing_entries(before[1:], after[1:]).any())


def _name_of(argument: MaskArgument | None) -> str | None:
    return None if argument is None else argument.name


def _error(evidence: Evidence, name: str, form: str, dtype: torch.dtype) -> Exception | None:
    """Return what a call with a mask in a form raises; None if it works."""
    subject, inputs = evidence.subject, evidence.inputs
    shown = AllVisible(form, dtype, true_keeps=True)(*inputs.sizes, subject.dtype)
    given = {**subject.arguments(inputs), name: shown}
    error = attempt(lambda: subject.call(given, inputs))
    return error if isinstance(error, Exception) else None
