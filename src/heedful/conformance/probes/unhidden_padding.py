"""Probe: where the code tells padding from real tokens, its attentions hide the padding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.evidence.alignment import PartialRun
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.fused import FUSED, MULTI_HEAD
from heedful.conformance.probes.padding_ids import (
    PADDED,
    hidden_padding_id,
    inputs_with_padding,
    step_telling_padding,
)
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import (
    LOOKUPS,
    SOFTMAXES,
    ancestors,
    unused_steps,
)
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step

MASK_NAME: re.Pattern[str] = re.compile(r"mask|pad|valid|real")
WEIGHTING: frozenset[str] = frozenset((*SOFTMAXES, FUSED, MULTI_HEAD))
"""Operations that give weight to tokens."""


class _Cause(NamedTuple):
    """Why padding changes the outputs of real tokens: a sentence, and the line to blame."""

    reason: str
    place: SourceLine | None


@probe("padding-leak")
def unhidden_padding(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Put ids of padding beside real tokens, and compare the outputs with those of the real tokens alone.

    Padding comes before the tokens of a causal target, which sees nothing that comes later. A target that takes a mask
    leaves it to its callers.
    """
    subject, (B, T) = evidence.subject, evidence.inputs.sizes
    padding = hidden_padding_id(evidence)
    if padding is None or T <= PADDED + 2 or subject.fixed_sizes is not None:
        return
    start = PADDED if evidence.is_causal else 0
    real = slice(start, start + T - PADDED)
    is_padding = torch.ones(B, T, dtype=torch.bool)
    is_padding[:, real] = False
    inputs = inputs_with_padding(evidence, padding, is_padding)
    if inputs is None:
        return
    whole = attempt(lambda: subject.record(inputs))
    alone = attempt(lambda: subject.record(inputs.tokens(real.start, real.stop)))
    if isinstance(whole, Exception) or isinstance(alone, Exception):
        return
    rows = whole.output[:, real]
    if rows.shape != alone.output.shape or not differing_entries(rows, alone.output).any():
        return
    cause = _mask_of_rows(whole, is_padding) or _weight_on_padding(
        PartialRun(alone, whole, start), is_padding
    )
    if cause is not None:
        distance = (rows - alone.output).abs().max()
        where = "before" if start else "after"
        yield Finding(
            "padding-leak",
            "suspicious" if start and _is_counted(whole, is_padding) else "bug",
            f"{cause.reason} With {PADDED} ids of padding {where} the real tokens, the output differs by "
            f"{distance:.3g}.",
            f"B = {B}, T = {T}, the id of padding is {padding}",
            cause.place,
        )


def _is_counted(whole: Observation, is_padding: Tensor) -> bool:
    """Check whether what tells padding numbers rows of tables alone: padding may then be meant to come last."""
    told, steps = step_telling_padding(whole, is_padding), whole.trace.steps
    reached = set[int]() if told is None else {told.index}
    for step in steps:
        if not any(source.step in reached for source in step.inputs):
            continue
        if not step.dtype.is_floating_point:
            reached.add(step.index)
        elif step.operation not in LOOKUPS:
            return False
    return True


def _mask_of_rows(whole: Observation, is_padding: Tensor) -> _Cause | None:
    """Return the cause if a mask is computed from the tokens' vectors, and is the same at padding and elsewhere."""
    steps = whole.trace.steps
    unused = unused_steps(steps)
    for step in steps:
        mask, name = tensor_of(step), step.name.partition("·")[0]
        if mask is None or step.index in unused or not MASK_NAME.search(name.lower()):
            continue
        if mask.shape != is_padding.shape or not bool((mask == mask[0, 0]).all()):
            continue
        behind = (steps[index] for index in sorted(ancestors(steps, step)))
        made = next((it for it in behind if _reduces_rows(whole, it, is_padding.shape)), None)
        if made is not None:
            reason = f"{name!r} is computed from the vectors of the tokens, and is the same at padding and elsewhere."
            return _Cause(reason, SourceLine.of(made))
    return None


def _reduces_rows(observation: Observation, step: Step, shape: torch.Size) -> bool:
    """Check whether a step makes one number for each token of the vectors of the tokens."""
    read = (observation.trace.steps[it.step] for it in step.inputs if it.step is not None)
    return step.shape == shape and any(
        it.shape[:-1] == shape and it.shape[-1] > 1 and not it.dtype.is_complex for it in read
    )


def _weight_on_padding(run: PartialRun, is_padding: Tensor) -> _Cause | None:
    """Return the cause if the code tells padding by its ids, and an attention mixes it with real tokens first."""
    steps = run.whole.trace.steps
    told = step_telling_padding(run.whole, is_padding)
    differing = [step for step in run.part.trace if run.differs(step)]
    if told is None or told.index in unused_steps(steps) or not differing:
        return None
    mixing = run.origin(differing[-1])
    if mixing.operation not in WEIGHTING:
        return None
    reason = (
        f"The code tells padding from real tokens by their ids, in {told.name.partition('·')[0]!r}, but this does not "
        "hide the padding."
    )
    return _Cause(reason, SourceLine.of(_mask_made_for(run.part, mixing)) or run.place(mixing))


def _mask_made_for(observation: Observation, call: Step) -> Step | None:
    """Return the last step that makes the mask of a call of PyTorch's attention, on another line; None without one."""
    mask, steps = call.keywords.get("attn_mask"), observation.trace.steps
    if not isinstance(mask, Source) or mask.step is None:
        return None
    made = (steps[index] for index in sorted(ancestors(steps, steps[mask.step]), reverse=True))
    return next((it for it in made if (it.file, it.line) != (call.file, call.line)), None)
