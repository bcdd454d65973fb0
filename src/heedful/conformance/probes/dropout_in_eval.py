"""Probe: nothing is dropped in eval mode."""

from __future__ import annotations

import re
from collections.abc import Iterator

from heedful.conformance.evidence.dropout import dropout_probability, dropout_steps
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.noise import draws_noise
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.assignments import last_assignment
from heedful.conformance.recording.call_sites import value_handed_to
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step


@probe("dropout-in-eval")
def dropout_in_eval(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Run twice in eval mode with different random numbers, and check that the outputs are equal."""
    subject, inputs = evidence.subject, evidence.inputs
    outputs = [subject.fresh(seed=seed).run(inputs).detach() for seed in (1, 2)]
    if not differing_entries(*outputs).any():
        return
    first, second = (subject.fresh(seed=seed).record(inputs) for seed in (1, 2))
    step = next(iter(dropout_steps(first, second)), None)
    p = None if step is None else dropout_probability(step)
    difference = (outputs[0] - outputs[1]).abs().max()
    noise = p is None and draws_noise(evidence)
    why = "." if p is None else f": entries are dropped with p = {p:.3g}."
    yield Finding(
        "dropout-in-eval",
        "suspicious" if noise else "bug",
        f"In eval mode, two runs on the same tokens differ by {difference:.3g}"
        + (", because it draws normal numbers or indices." if noise else why),
        f"B = {inputs.sizes[0]}, T = {inputs.sizes[1]}",
        None if step is None else _line_of_probability(evidence, step),
    )


def _line_of_probability(evidence: Evidence, step: Step) -> SourceLine | None:
    """Return the line that computes what is passed as `dropout_p`; the step's own if nothing is.

    As with PyTorch's fused attention, a function with an argument of that name does not know whether the module trains.
    """
    variable = re.search(r"\bdropout_p=([a-z_]\w*)\b(?!\.)", step.source)
    assigned = variable and last_assignment(evidence.subject.callee, step, variable.group(1))
    if assigned is not None or "train" in step.source:
        return assigned or SourceLine.of(step)
    handed = value_handed_to(evidence.subject.module, step, re.compile("^dropout_p$"))
    return SourceLine.of(step) if handed is None else handed.place
