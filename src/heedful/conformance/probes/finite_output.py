"""Probe: the output is finite in eval and in train mode, in float64 and in float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.omitted_arguments import may_be_omitted
from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.crashes import fresh_subject
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

UNINITIALISED: tuple[str, ...] = ("empty", "new_empty")
SHORT = 1
"""A number of tokens at which statistics over the tokens may divide by zero."""
SPREADS: tuple[str, ...] = ("std", "var", "std_mean", "var_mean")
"""What is undefined for one token."""


@probe("output-not-finite")
def finite_output(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Run in both modes and dtypes, on one token, and without a mask that may be None.

    No entry of the output may be NaN or infinite.
    """
    for subject, inputs, omitted in _runs(evidence):
        output = attempt(lambda subject=subject, inputs=inputs: subject.run(inputs).detach())
        if isinstance(output, Exception) or output.isfinite().all():
            continue  # the probe of crashes reports exceptions
        B, T = inputs.sizes
        mode = "train" if subject.module is not None and subject.module.training else "eval"
        dtype_name = str(subject.dtype).removeprefix("torch.")
        step = _first_step_not_finite(subject.record(inputs))
        undefined = T == SHORT and step is not None and step.operation in SPREADS
        yield Finding(
            "output-not-finite",
            "suspicious" if undefined else "bug",
            _proof(output, step),
            f"{mode} mode, {dtype_name}, B = {B}, T = {T}{omitted}",
            SourceLine.of(step),
        )
        return


def _runs(evidence: Evidence) -> Iterator[tuple[Subject, Inputs, str]]:
    """Yield subjects, inputs, and what a report says of arguments that this run omits."""
    for dtype in (evidence.subject.dtype, torch.float32):
        for train in (False, True):
            yield *fresh_subject(evidence, dtype, train), ""
    if evidence.subject.fixed_sizes is None:
        yield evidence.subject, evidence.inputs.tokens(0, SHORT), ""
    given = evidence.subject.convention
    omissible = may_be_omitted(evidence.subject.target, given.constants)
    masks = {name for name in omissible if "mask" in name}
    if masks and not given.from_example:
        rest = {name: it for name, it in given.constants.items() if name not in masks}
        without = replace(evidence.subject, convention=replace(given, constants=rest))
        yield without, evidence.inputs, f", without {', '.join(sorted(masks))}"


def _proof(output: Tensor, step: Step | None) -> str:
    nan, infinite = int(output.isnan().sum()), int(output.isinf().sum())
    counts = [f"{nan} NaN"] * bool(nan) + [f"{infinite} infinite"] * bool(infinite)
    total = f"{output.numel()} entries"
    uninitialised = step is not None and step.operation.startswith(UNINITIALISED)
    reason = " This memory is read before all of it is written, and counts as NaN." * uninitialised
    return f"For finite inputs, the output has {' and '.join(counts)} among its {total}.{reason}"


def _first_step_not_finite(observation: Observation) -> Step | None:
    """Return the first step that makes the output NaN or infinite.

    Starting from the last step whose value is not finite, go back while an input is not finite either. A softmax over
    −∞ only is left through its input, so that the line which hides all keys is reported.
    """
    steps = observation.trace.steps
    step = next((step for step in reversed(steps) if _is_not_finite(step)), None)
    while step is not None:
        inputs = [steps[source.step] for source in step.inputs if source.step is not None]
        earlier = next((it for it in inputs if _is_not_finite(it)), None)
        if earlier is None:
            break
        step = earlier
    return step


def _is_not_finite(step: Step) -> bool:
    value = tensor_of(step)
    return value is not None and value.is_floating_point() and not value.isfinite().all()
