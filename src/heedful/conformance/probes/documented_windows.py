"""Probe: a mask with an entry for each window serves the windows of several images, if the docstring says so."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from heedful.conformance.calling.documentation import documented_arguments
from heedful.conformance.calling.exceptions import attempt, describe_exception, raising_line
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.reporting.finding import Finding

OF_IMAGES: re.Pattern[str] = re.compile(
    r"[(\[]\s*(n_?w|num_?win\w*)\s*[*·×x]\s*b\w*\s*,|[(\[]\s*b\w*\s*[*·×x]\s*(n_?w|num_?win\w*)\s*,"
)
"""The shape of the windows of all images, in lower case: "(num_windows*B, N, C)"."""
OF_WINDOWS: re.Pattern[str] = re.compile(r"[(\[]\s*(n_?w|num_?win\w*)\s*,[^,]+,[^,]+[)\]]")
"""The shape of a mask, in lower case: "(num_windows, Wh*Ww, Wh*Ww)"."""
WINDOWS, IMAGES = 2, 2


@probe("mask-broadcast")
def documented_windows(evidence: Evidence) -> Iterator[Finding]:
    """Give a mask that shows everything, with an entry for each window, beside the windows of two images."""
    subject, T = evidence.subject, evidence.inputs.sizes[1]
    said = documented_arguments(subject.target.callee)
    masks = [it for it in subject.target.parameters if "mask" in it.lower()]
    masks = [it for it in masks if OF_WINDOWS.search(said.get(it, "").lower())]
    if not masks or OF_IMAGES.search(said.get(subject.convention.names[0], "").lower()) is None:
        return
    inputs = subject.draw(WINDOWS * IMAGES, T)
    if isinstance(attempt(lambda: subject.run(inputs)), Exception):
        return
    mask = torch.zeros(WINDOWS, T, T, dtype=subject.dtype)
    error = attempt(lambda: subject.call({**subject.arguments(inputs), masks[0]: mask}, inputs))
    if isinstance(error, Exception):
        yield Finding(
            "mask-broadcast",
            "bug",
            f"By the docstring, {masks[0]} has an entry for each window, and the tokens are the windows of all images. "
            f"With {IMAGES} images of {WINDOWS} windows the target raises {describe_exception(error)}",
            f"{WINDOWS * IMAGES} windows of {T} tokens, {masks[0]} ({WINDOWS}, {T}, {T})",
            raising_line(error),
            "Repeat the mask for each image, or give the scores an axis for images.",
        )
