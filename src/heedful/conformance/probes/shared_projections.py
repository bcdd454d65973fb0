"""Probe: each head has projections of its own (Vaswani et al. 2017, section 3.2.2)."""

from __future__ import annotations

from collections.abc import Iterator

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import (
    SPLITTING,
    is_projection,
    parameter_names,
    steps_from_projection,
)
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step


@probe("heads-mixed-split")
def shared_projections(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Search for an attention whose queries, keys and values are all projected after the split into heads."""
    run = evidence.baseline
    for attention in evidence.attentions:
        sources = (attention.query_source, attention.key_source, attention.value_source)
        paths = [steps_from_projection(run, source)[:1] for source in sources]
        projections = [path[0] for path in paths if path and _is_of_heads(run.trace.steps, path[0])]
        if len(projections) == len(sources):
            size = projections[0].shape[-1]
            yield Finding(
                "heads-mixed-split",
                "suspicious",
                f"The tokens are split into heads before they are projected, so that all heads share "
                f"{', '.join(dict.fromkeys(parameter_names(projections)))} of {size} × {size}.",
                "",
                SourceLine.of(projections[0]),
                "Project the tokens by one matrix of all heads, and split the result: W(x).view(B, T, H, D).",
            )
            return


def _is_of_heads(steps: tuple[Step, ...], step: Step) -> bool:
    """Check whether a step projects parts of tokens, which a view has split, to parts of the same size."""
    before = next((steps[it.step] for it in step.inputs if it.step is not None), None)
    if not is_projection(step) or before is None or before.operation not in SPLITTING:
        return False
    size = step.shape[-1]
    return len(step.shape) > 3 and before.shape[-1] == size < size * before.shape[-2]
