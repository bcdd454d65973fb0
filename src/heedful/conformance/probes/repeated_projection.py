"""Probe: a query that is projected in a loop over the keys is projected once, and not anew for each key."""

from __future__ import annotations

from collections.abc import Iterator

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import parameter_names
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import ANY_CALL, Fact, Finding


@probe("weights-wrong")
def repeated_projection(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Look for a linear layer that one line applies to its own output, with nothing in between."""
    steps = evidence.baseline.trace.steps
    for step in (it for it in steps if it.operation == "linear"):
        source = step.inputs[0].step
        before = None if source is None else steps[source]
        if before is None or before.operation != "linear" or before.place != step.place:
            continue
        layers = parameter_names([step])
        if layers and layers == parameter_names([before]):
            yield Finding(
                "weights-wrong",
                "bug",
                f"{layers[0].rpartition('.')[0]} is applied to its own output: in a loop over the keys, each key meets "
                "a query that was projected once more than that of the key before.",
                ANY_CALL,
                SourceLine.of(step),
                "Give the projected query a variable of its own, before the loop.",
            )
            return
