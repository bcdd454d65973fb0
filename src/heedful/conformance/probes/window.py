"""Probe: a query sees as many keys as its window says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from heedful.conformance.calling import names
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.masking import mask_building_line
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.call_sites import line_reading
from heedful.conformance.recording.forwarding import call_of_omitting
from heedful.conformance.recording.source import SourceLine, function_around
from heedful.conformance.reporting.finding import Fact, Finding

ADDED: re.Pattern[str] = re.compile(r"self\.\w+ ([+-] \d)")
COUNTING: re.Pattern[str] = re.compile(r"inclu|exclu|to the left|on each side")


@probe("window-off-by-one", "window-missing")
def window(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Count the keys that the last query sees, and compare with the window."""
    expected = evidence.expected.window
    for attention in evidence.attentions:
        _, Tq, Tk = attention.applied_weights.shape
        width = int(attention.visible.any(0)[-1].sum())
        if Tq != Tk or (width == Tk and expected is None):
            continue
        if width < Tk:
            yield Fact("window", f"{width} keys, including its own")
        if expected is None or expected >= Tk or not evidence.expected.causal or width == expected:
            return
        yield Finding(
            "window-off-by-one" if abs(width - expected) == 1 else "window-missing",
            "bug",
            f"The last query sees {width} keys, but its window is {expected} keys, including its own.",
            f"T = {Tk}",
            _line(evidence, attention, width - expected),
        )
        return


def _line(evidence: Evidence, attention: RecordedAttention, excess: int) -> SourceLine | None:
    """Return the line that gives an attention no window or a wrong one, or else the line that builds the mask.

    A line gives a wrong one if it adds to the window what the queries see in excess, if the function outside the
    module that builds the mask says which keys it counts, or if the line that builds the mask is about any two bounds.
    """
    omitting = call_of_omitting(
        evidence.subject.callee, attention.context_step.function, names.WINDOWS
    )
    building = mask_building_line(evidence, attention)
    module = evidence.subject.module
    if omitting or module is None or building is None:
        return omitting or building
    readers = (
        line_reading(part, name)
        for part in module.modules()
        for name in vars(part)
        if "window" in name
    )
    reading = next((line for line in readers if line is not None), None)
    added = ADDED.search(reading.source) if reading else None
    adds_excess = added is not None and int(added[1].replace(" ", "")) == excess
    builder = function_around(building)
    stated = builder and COUNTING.search((ast.get_docstring(builder) or "").lower())
    takes_window = builder and any("window" in it.arg for it in builder.args.args)
    elsewhere = "window" not in building.source and not takes_window
    return reading if reading and (adds_excess or stated or elsewhere) else building
