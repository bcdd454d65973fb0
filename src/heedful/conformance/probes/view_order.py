"""Probe: views take the axes of a tensor in the order in which the tensor has them."""

from __future__ import annotations

from collections.abc import Iterator

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.torn_views import shifts_positions
from heedful.conformance.recording.dataflow import unused_steps
from heedful.conformance.recording.named_views import VIEWS, NamedView, named_views
from heedful.conformance.recording.observation import value_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.recording.target_source import own_functions_of
from heedful.conformance.reporting.finding import Finding
from heedful.observation import Step
from heedful.shapes import times


@probe("heads-mixed-split", "batch-mixed")
def view_order(evidence: Evidence) -> Iterator[Finding]:
    """Find views that name the axes of a tensor in another order, as if a view could transpose them."""
    for function in own_functions_of(evidence.subject.callee):
        for view in named_views(function):
            step = _step_of(evidence, function.__code__.co_filename, view)
            before = None if step is None else value_of(evidence.baseline, step.inputs[0])
            if step is None or before is None or not view.is_misordered(before.shape):
                continue
            if shifts_positions(evidence, step):
                continue
            names = ", ".join(sorted(view.axes, key=view.axes.__getitem__))
            mixed = "tokens" if view.begins_with_first_axis else "sequences"
            proof = (
                f"The axes {names} of {times(before.shape)} numbers are named in another order in a view, which keeps "
                f"the order of the numbers: the rows of {times(step.shape)} mix {mixed}."
            )
            remedy = "Permute the axes first, as in x.transpose(1, 2).reshape(…)."
            name = "heads-mixed-split" if mixed == "tokens" else "batch-mixed"
            yield Finding(name, "bug", proof, "", SourceLine.of(step), remedy)
            return


def _step_of(evidence: Evidence, file: str, view: NamedView) -> Step | None:
    """Return the recorded step of a view; None if it did not run, or for nothing."""
    unused = unused_steps(evidence.baseline.trace.steps)
    return next(
        (
            step
            for step in evidence.baseline.trace
            if step.file == file and step.line in view.lines and step.operation in VIEWS
            if step.index not in unused
        ),
        None,
    )
