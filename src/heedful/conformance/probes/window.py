"""Probe: a query sees as many keys as its window says."""

from __future__ import annotations

from collections.abc import Iterator

from heedful.conformance.calling import names
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.masking import mask_building_line
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.source import SourceLine, call_that_omits
from heedful.conformance.reporting.finding import Fact, Finding


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
            _line(evidence, attention),
        )
        return


def _line(evidence: Evidence, attention: RecordedAttention) -> SourceLine | None:
    """Return the line that calls an attention without its window, or else the line that builds the mask."""
    step = attention.context_step
    omitting = call_that_omits(evidence.subject.callee, step, names.WINDOWS)
    return omitting or mask_building_line(evidence, attention)
