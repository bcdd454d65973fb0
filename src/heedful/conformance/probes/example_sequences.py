"""Probe: no sequence of an example, and none without anything beside its tokens, makes the output NaN."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.resizing import Resized
from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.masked_rows import line_masking_whole_row
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import ancestors, is_projection
from heedful.conformance.recording.observation import Observation
from heedful.conformance.reporting.finding import Fact, Finding, Level

MOST = 4
"""How many sequences of an example are tried."""


@probe("nan-on-masked-rows", "output-not-finite")
def example_sequences(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Run on the other arguments of each sequence of an example, and on zeros where a mask is made from them."""
    if evidence.baseline.output.isnan().any():
        return
    constants = evidence.subject.convention.constants
    for name, constant in constants.items():
        if not isinstance(constant, Resized) or not isinstance(constant.value, Tensor):
            continue
        for what, level, subject in _variants(evidence, name, constant):
            observation = attempt(lambda subject=subject: subject.record(evidence.inputs))
            if isinstance(observation, Exception) or not observation.output.isnan().any():
                continue
            masked = _makes_mask(observation, name)
            yield Finding(
                "nan-on-masked-rows" if masked else "output-not-finite",
                level,
                f"With {what}, the output is NaN"
                + (": what is made from it hides every key from the queries." if masked else "."),
                "B = {}, T = {}".format(*evidence.inputs.sizes),
                line_masking_whole_row(observation),
            )
            return


def _variants(
    evidence: Evidence, name: str, constant: Resized
) -> Iterator[tuple[str, Level, Subject]]:
    """Yield what other values of an argument are, the level of what goes wrong, and the subject that gets them.

    Nobody has said that an argument may be zeros alone.
    """
    value: Tensor = constant.value
    if constant.axes.of(value.shape)[:1] == "B":
        for sequence in range(min(len(value), MOST)):
            if sequence != constant.sequence:
                other = replace(constant, sequence=sequence)
                what = f"{name} of sequence {sequence} of the example"
                yield what, "bug", _given(evidence, name, other)
    baseline = evidence.baseline
    if _makes_mask(baseline, name) and _is_projected(baseline, name):
        empty = replace(constant, value=torch.zeros_like(value))
        yield f"{name} of zeros alone", "suspicious", _given(evidence, name, empty)


def _given(evidence: Evidence, name: str, constant: Resized) -> Subject:
    """Return the subject with another value of one argument."""
    subject = evidence.subject
    constants = {**subject.convention.constants, name: constant}
    return replace(subject, convention=replace(subject.convention, constants=constants))


def _makes_mask(observation: Observation, name: str) -> bool:
    """Check whether a Boolean tensor that the output depends on is computed from an argument alone."""
    steps = observation.trace.steps
    read = _arguments_read(observation)
    used = ancestors(steps, steps[-1]) if steps else set[int]()
    return any(steps[index].dtype == torch.bool and read[index] == {name} for index in used)


def _is_projected(observation: Observation, name: str) -> bool:
    """Check whether an argument holds data, which trained weights project, and not only a mask."""
    read = _arguments_read(observation)
    return any(is_projection(step) and name in read[step.index] for step in observation.trace)


def _arguments_read(observation: Observation) -> list[set[str]]:
    """Return for each step of a run the names of the arguments that it was computed from."""
    read: list[set[str]] = []
    for step in observation.trace:
        own = {it.name for it in step.inputs if it.kind == "input"}
        behind = (read[it.step] for it in step.inputs if it.step is not None)
        read.append(own.union(*behind))
    return read
