"""Check that queries which see no key do not produce NaN."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.padded_batch import (
    padded_subject,
    padding_is_inverted,
    padding_sides,
    real_tokens,
)
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding


@probe("nan-on-masked-rows")
def masked_rows(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Let queries see no key: pad a causal sequence on the left, or make a whole sequence padding."""
    subject = padded_subject(evidence)
    if subject is None or padding_is_inverted(evidence, subject):
        return
    causal = evidence.is_causal
    if causal and "left" not in padding_sides(subject):
        return
    keep = real_tokens(evidence, "left")
    if not causal:
        keep = torch.ones_like(keep)
        keep[-1] = False
    output = subject.run(evidence.inputs, keep=keep)
    gradients = _parameter_gradients(evidence, output[keep].square().sum())
    in_output = bool(output.detach().isnan().any())
    if not in_output and not any(gradient.isnan().any() for gradient in gradients):
        return
    where = "output" if in_output else "gradient of a loss on real tokens alone"
    consequence = ", and the next layer spreads it to every row" if causal else ""
    yield Finding(
        "nan-on-masked-rows",
        "bug" if causal else "suspicious",
        f"Queries that see no key produce NaN in the {where}{consequence}.",
        "padding on the left" if causal else "one sequence is all padding",
        _line_masking_whole_row(subject.record(evidence.inputs, keep=keep)),
    )


def _parameter_gradients(evidence: Evidence, loss: Tensor) -> list[Tensor]:
    module = evidence.subject.module
    parameters = [] if module is None else [it for it in module.parameters() if it.requires_grad]
    if not parameters or not loss.requires_grad:
        return []
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [gradient for gradient in gradients if gradient is not None]


def _line_masking_whole_row(observation: Observation) -> SourceLine | None:
    """Return the line that leaves a whole row of scores at −∞, or else the first that produces NaN."""
    for attention in find_attentions(observation):
        for step in attention.chain:
            value = tensor_of(step)
            if value is not None and (value == -torch.inf).all(-1).any():
                return SourceLine.of(step)
    for step in observation.trace:
        value = tensor_of(step)
        if value is not None and value.isnan().any():
            return SourceLine.of(step)
    return None
