"""Probe: an attention within the target reads the mask that it is given."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import islice

from torch import nn

from heedful.conformance.calling.documentation import is_unused_on_purpose
from heedful.conformance.calling.target import is_from_torch
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import (
    EXPONENTIALS,
    SOFTMAXES,
)
from heedful.conformance.recording.forwarding import parameter_is_read, parts_given
from heedful.conformance.recording.source import SourceLine, names_in, parsed
from heedful.conformance.recording.target_source import prose_about
from heedful.conformance.reporting.finding import ANY_CALL, Finding


@probe("mask-unused")
def unread_masks(evidence: Evidence) -> Iterator[Finding]:
    """Search for a mask that a method gives to a part with a softmax, whose code never reads it."""
    yield from islice(unread_masks_in(evidence.subject.module), 1)


def unread_masks_in(module: nn.Module | None) -> Iterator[Finding]:
    """Yield the findings on the parts of a module that are given a mask and do not read it."""
    for whole in () if module is None else module.modules():
        for part, mask in () if is_from_torch(whole) else parts_given(whole, "mask"):
            line = None if is_from_torch(part) else _normalizing_line(part)
            if line is None or _reads_a_mask(part) or is_unused_on_purpose(mask, prose_about(part)):
                continue
            yield Finding(
                "mask-unused",
                "bug",
                f"{type(part).__name__} takes {mask}, and no line of its forward() reads it: what it should hide keeps "
                "its weight.",
                ANY_CALL,
                line,
            )


def _normalizing_line(part: nn.Module) -> SourceLine | None:
    """Return the first line of a part's forward() that takes a softmax, or the exponentials of one."""
    source, normalizing = parsed(inspect.unwrap(type(part).forward)), {*SOFTMAXES, *EXPONENTIALS}
    for statement in () if source is None else source.statements():
        match statement:
            case ast.Assign(value=ast.expr() as value) | ast.Return(value=ast.expr() as value):
                if source is not None and names_in([value]) & normalizing:
                    return source.line_of(statement)
    return None


def _reads_a_mask(part: nn.Module) -> bool:
    """Check whether a part reads a mask: it may then leave others unread, as deformable attentions do."""
    forward = inspect.unwrap(type(part).forward)
    masks = (it for it in inspect.signature(forward).parameters if "mask" in it)
    return any(parameter_is_read(forward, it) for it in masks)
