"""Probe: the weights that a call returns are those of its attention, and asking for them changes nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.noise import draws_noise
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.assignments import last_return, variables_read
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.observation import Observation
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding

ASKING: re.Pattern[str] = re.compile(
    r"^(need|needs|output|outputs|return|returns|with|get|want)_(\w+_)?(att\w*|weights?|maps?|probs?)$"
)
"""The names of flags by which a caller asks for the weights."""

ROUNDING = 1e-3
"""The largest difference relative to the largest output. Fused attention may compute in a coarser dtype."""

OF_WEIGHTS: re.Pattern[str] = re.compile(r"weight|prob|alpha|softmax")
OF_SCORES: re.Pattern[str] = re.compile(r"score|logit|sim|energy|energies|dots|raw|pre_?softmax|qk")


@probe("weights-wrong")
def returned_weights(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Ask for the weights. The output must stay the same, and no scores may come in their place."""
    yield from islice(_findings(evidence), 1)


def _findings(evidence: Evidence) -> Iterator[Finding]:
    yield from _scores(evidence, evidence.baseline, "")
    subject, inputs = evidence.subject, evidence.inputs
    for name, value in {} if draws_noise(evidence) else _flags(evidence).items():
        given = {**subject.arguments(inputs), name: not value}
        run = attempt(lambda it=given: subject.record_call(it, inputs, open_attention=True))
        if isinstance(run, Observation):
            yield from _another_output(evidence, given, run, f"{name}={not value}")
            yield from _scores(evidence, run, f"{name}={not value}")


def _flags(evidence: Evidence) -> Mapping[str, bool]:
    """Return the flags by which a call asks for the weights, with their defaults."""
    parameters = evidence.subject.target.parameters.items()
    return {
        name: it.default
        for name, it in parameters
        if isinstance(it.default, bool) and ASKING.search(name)
    }


def _another_output(
    evidence: Evidence, given: Mapping[str, Any], run: Observation, setting: str
) -> Iterator[Finding]:
    """Report that a call which asks for the weights has another output."""
    own, other = evidence.baseline.output, run.output
    if own.shape != other.shape or not (own.isfinite().all() and other.isfinite().all()):
        return
    again = attempt(lambda: evidence.subject.fresh(seed=1).call(given, run.inputs))
    if not isinstance(again, Tensor) or differing_entries(again.detach(), other).any():
        return  # the output is random
    distance = ((own - other).abs().max() / own.abs().max().clamp(min=1e-12)).item()
    if distance > ROUNDING:
        attentions = find_attentions(run)
        step = (attentions[-1].softmax_step or attentions[-1].scores_step) if attentions else None
        yield Finding(
            "weights-wrong",
            "bug",
            f"With {setting} the output itself differs, by {distance:.2g} of its largest entry, though only the "
            "weights are asked for.",
            "B = {}, T = {}, {}".format(*run.inputs.sizes, setting),
            SourceLine.of(step) or last_return(evidence.subject.target.forward),
            "Compute the same scores, with the same scale and mask, whether the weights are returned or not.",
        )


def _scores(evidence: Evidence, run: Observation, setting: str) -> Iterator[Finding]:
    """Report scores that are returned where the code speaks of weights."""
    attentions = find_attentions(run)
    returned = last_return(evidence.subject.target.forward)
    if len(attentions) != 1 or returned is None or attentions[0].fused:
        return
    named = variables_read(returned.file, returned.line)
    meant = [setting.partition("=")[0], *named]
    of_weights = any(OF_WEIGHTS.search(it) or "att" in it for it in meant)
    if not of_weights or any(OF_SCORES.search(it) for it in meant):
        return
    result: list[object] = pytree.tree_leaves(run.trace.result)
    for tensor in (it for it in result if isinstance(it, Tensor) and it.dim() > 2):
        what = _as_scores(tensor.detach(), attentions[0])
        if what:
            yield Finding(
                "weights-wrong",
                "bug" if any(OF_WEIGHTS.search(it) for it in named) else "suspicious",
                f"The call returns the {what}, whose rows do not sum to 1, and not the weights.",
                ", ".join(filter(None, ("B = {}, T = {}".format(*run.inputs.sizes), setting))),
                returned,
                "Return what the softmax returns.",
            )


def _as_scores(tensor: Tensor, attention: RecordedAttention) -> str:
    """Return what a tensor holds if it is the scores of an attention; "" if it holds something else."""
    whole = {"scores": attention.scores, "logits": attention.logits}
    for what, own in whole.items():
        if tensor.numel() == own.numel() and tensor.shape[-2:] == own.shape[-2:]:
            weights = attention.weights.reshape(tensor.shape)
            alike = not differing_entries(tensor, own.reshape(tensor.shape)).any()
            if alike and differing_entries(tensor, weights).any():
                return what
    return ""
