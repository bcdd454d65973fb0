"""Probe: a softmax over tokens tells them apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.softmax import softmax_dimension
from heedful.conformance.recording.dataflow import (
    SOFTMAXES,
    ancestors,
    steps_from_tokens,
)
from heedful.conformance.recording.observation import value_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Finding
from heedful.observation import Step

FEW = 3
"""With fewer tokens, scores may be equal by chance of a rounding or a threshold."""
EQUAL = 1e-6
"""How much equal scores differ by rounding, as a share of what scores are."""
REPEATING = frozenset({"expand", "expand_as", "repeat", "repeat_interleave", "tile"})


@probe("attention-ignored")
def even_weights(evidence: Evidence) -> Iterator[Finding]:
    """Look for a softmax over tokens whose scores are computed from the tokens and are the same for all of them.

    Scores of one value alone are left out: a threshold may have cut them.
    """
    steps = evidence.baseline.trace.steps
    from_tokens, (_, T) = steps_from_tokens(steps), evidence.inputs.sizes
    for step in (it for it in steps if it.operation in SOFTMAXES and it.index in from_tokens):
        dim, scores = softmax_dimension(step), value_of(evidence.baseline, step.inputs[0])
        if dim is None or scores is None or not _are_even(scores, dim, T):
            continue
        yield Finding(
            "attention-ignored",
            "bug",
            f"The {T} scores of this softmax are computed from the tokens and are equal, so that "
            f"each weight is 1/{T}, whatever the tokens are.",
            f"T = {T}",
            SourceLine.of(_repeating(steps, step) or step),
            "Compute the score of each token from that token, too.",
        )
        return


def _are_even(scores: Tensor, dim: int, tokens: int) -> bool:
    """Check whether scores are equal along an axis of tokens, and differ along others."""
    if scores.shape[dim] != tokens or tokens < FEW or not scores.isfinite().all():
        return False
    differences = scores.amax(dim) - scores.amin(dim)
    return bool(
        scores.amax() > scores.amin() and differences.max() <= EQUAL * scores.abs().median()
    )


def _repeating(steps: Sequence[Step], softmax: Step) -> Step | None:
    """Return the last step that repeats something for every token before a softmax."""
    behind = sorted(ancestors(steps, softmax), reverse=True)
    return next((steps[it] for it in behind if steps[it].operation in REPEATING), None)
