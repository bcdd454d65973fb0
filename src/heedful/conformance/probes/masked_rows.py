"""Check that queries which see no key do not produce NaN."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.conformance.calling.mask_forms import MaskArgument
from heedful.conformance.calling.masks import masks_by_name
from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.padded_batch import (
    describe_sizes,
    masked_rows_spoil,
    padded_run,
    padded_subject,
    padding_is_inverted,
    padding_sides,
    real_tokens,
)
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.weighting_causes import ADDITIONS
from heedful.conformance.recording.dataflow import VIEWS
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step


@probe("nan-on-masked-rows")
def masked_rows(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Let queries see no key: pad on the right, far behind the real tokens, on the left, or make a sequence padding."""
    subject = padded_subject(evidence)
    if subject is None or padding_is_inverted(evidence, subject):
        return
    for question in (_reaching_real_tokens, _far_from_real_tokens, _without_any_key):
        finding = question(evidence, subject)
        if finding is not None:
            yield finding
            return


def _reaching_real_tokens(evidence: Evidence, subject: Subject) -> Finding | None:
    keep, padded = real_tokens(evidence, "right"), padded_run(evidence, subject, "right")
    if evidence.baseline.output.isnan().any() or not masked_rows_spoil(padded, keep):
        return None
    return Finding(
        "nan-on-masked-rows",
        "bug",
        "Padded queries see no key and become NaN, which reaches the outputs of real tokens.",
        describe_sizes(evidence),
        line_masking_whole_row(padded),
    )


def _far_from_real_tokens(evidence: Evidence, subject: Subject) -> Finding | None:
    """Leave one real token. Only attention within a window has queries, in the padding, that do not see it."""
    keep = torch.ones(evidence.inputs.sizes, dtype=torch.bool)
    keep[-1, 1:] = False
    if evidence.is_causal or not subject.run(evidence.inputs, keep=keep)[-1].isnan().any():
        return None
    return Finding(
        "nan-on-masked-rows",
        "bug",
        "Queries in the padding, far from the real tokens, see no key and produce NaN in the output. A later layer "
        "gives them weights of 0, and 0 · NaN is NaN.",
        "one real token, and padding behind it",
        line_masking_whole_row(subject.record(evidence.inputs, keep=keep)),
    )


def _without_any_key(evidence: Evidence, subject: Subject) -> Finding | None:
    causal = evidence.is_causal
    if causal and "left" not in padding_sides(evidence, subject):
        return None
    keep = real_tokens(evidence, "left")
    if not causal:
        keep = torch.ones_like(keep)
        keep[-1] = False
    output = subject.run(evidence.inputs, keep=keep)
    gradients = _parameter_gradients(evidence, output[keep].square().sum())
    in_output = bool(output.detach().isnan().any())
    if not in_output and not any(gradient.isnan().any() for gradient in gradients):
        return None
    where = "output" if in_output else "gradient of a loss on real tokens alone"
    consequence = ", and the next layer spreads it to every row" if causal else ""
    by_caller = subject.convention.visible_keys is not None  # it joins both masks
    is_called_mask = subject.padding is not None and _is_called_mask(subject, subject.padding)
    return Finding(
        "nan-on-masked-rows",
        "bug" if causal and is_called_mask and not by_caller else "suspicious",
        f"Queries that see no key produce NaN in the {where}{consequence}.",
        "padding on the left" if causal else "one sequence is all padding",
        line_masking_whole_row(subject.record(evidence.inputs, keep=keep)),
    )


def _is_called_mask(subject: Subject, mask: MaskArgument) -> bool:
    """Check whether a mask is one of Booleans, or is called a mask: numbers added to scores may mean something else."""
    return not mask.dtype.is_floating_point or mask.name in masks_by_name(subject)


def _parameter_gradients(evidence: Evidence, loss: Tensor) -> list[Tensor]:
    module = evidence.subject.module
    parameters = [] if module is None else [it for it in module.parameters() if it.requires_grad]
    if not parameters or not loss.requires_grad:
        return []
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [gradient for gradient in gradients if gradient is not None]


def line_masking_whole_row(observation: Observation) -> SourceLine | None:
    """Return the line that leaves a whole row of scores at −∞, or else the first that produces NaN.

    Code that computes a softmax step by step has to take care of such a row where it subtracts the row's maximum.
    """
    first = _first_nan(observation)
    if first is not None and first.operation == "sub":
        return SourceLine.of(first)
    for attention in find_attentions(observation):
        for step in attention.chain:
            value = tensor_of(step)
            if value is not None and (value == -torch.inf).all(-1).any():
                return SourceLine.of(_making_infinities(observation, step))
    return None if first is None else SourceLine.of(first)


def _first_nan(observation: Observation) -> Step | None:
    """Return the first step that produces NaN."""
    values = ((step, tensor_of(step)) for step in observation.trace)
    return next((it for it, value in values if value is not None and value.isnan().any()), None)


def _making_infinities(observation: Observation, step: Step) -> Step:
    """Return the step that puts −∞ where an addition, or a rearrangement, has it from."""
    while step.operation in (*ADDITIONS, *VIEWS):
        inputs = [observation.trace[it.step] for it in step.inputs if it.step is not None]
        values = ((it, tensor_of(it)) for it in reversed(inputs))
        infinite = (it for it, value in values if value is not None and (value == -torch.inf).any())
        earlier = next(infinite, None)
        if earlier is None:
            break
        step = earlier
    return step
