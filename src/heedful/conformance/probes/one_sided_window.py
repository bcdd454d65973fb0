"""Probe: a window of a target that is not causal limits the keys on both sides of a query."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from heedful.conformance.calling import names
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.masking import mask_building_line
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.definitions import attribute_definition
from heedful.conformance.recording.source import SourceLine, names_in, tree_of
from heedful.conformance.recording.target_source import prose_about
from heedful.conformance.reporting.finding import Fact, Finding

ONE_SIDE: re.Pattern[str] = re.compile(r"\blook\W?ahead|\bstream|\blatency|\bpast\b|\bfuture\b")
"""Words by which a target says that the two sides differ, in lower case."""


class _Window(NamedTuple):
    """A window that a module declares.

    Attributes:
        size: How many keys a query sees to each side.
        place: The line that makes a pair of it, one number for each side; None for a single number.
    """

    size: int
    place: SourceLine | None


@probe("window-missing")
def one_sided_window(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Search for queries that see as many keys on one side as their window says, and all keys on the other."""
    subject = evidence.subject
    if subject.module is None or evidence.expected.causal or subject.attention_mask is not None:
        return
    for attention in evidence.attentions:
        reaches = _reaches(attention)
        T = attention.visible.shape[-1]
        if reaches is None or max(reaches) < T - 1 or not 0 < min(reaches) < T - 1:
            continue
        window = next((it for it in _windows(subject.module) if it.size == min(reaches)), None)
        if window is None or ONE_SIDE.search(prose_about(subject.callee)):
            return
        limited, other = ("left", "right") if reaches[0] < reaches[1] else ("right", "left")
        yield Finding(
            "window-missing",
            "bug",
            f"A query sees {window.size} keys to its {limited}, as its window says, but all keys to its {other}.",
            f"T = {T}",
            window.place or mask_building_line(evidence, attention),
        )
        return


def _reaches(attention: RecordedAttention) -> tuple[int, int] | None:
    """Return how many keys to its left and to its right a query sees; None if the visible keys are no band."""
    visible = attention.visible.any(0)
    Tq, Tk = visible.shape
    if Tq != Tk or not visible.any():
        return None
    distances = torch.arange(Tk) - torch.arange(Tq)[:, None]
    seen = distances[visible]
    first, last = int(seen.min()), int(seen.max())
    is_band = torch.equal(visible, (distances >= first) & (distances <= last))
    return (-first, last) if is_band and first <= 0 <= last else None


def _windows(module: nn.Module) -> Iterator[_Window]:
    """Yield the windows of a module's parts: a number, or two that are made from the same one."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name not in names.WINDOWS:
                continue
            match value:
                case int() if not isinstance(value, bool):
                    yield _Window(value, None)
                case (int(left), int(right)) if abs(left) == abs(right):
                    place = attribute_definition(module, f"{path}.{name}".strip("."))
                    if place is not None and _repeats_a_variable(place):
                        yield _Window(abs(left), place)


def _repeats_a_variable(place: SourceLine) -> bool:
    """Check whether a line makes a pair of which both numbers come from the same variables."""
    match tree_of(place.source).body:
        case [ast.Assign(value=ast.Tuple(elts=[one, other]) | ast.List(elts=[one, other]))]:
            return names_in([one]) == names_in([other]) != set()
    return False
