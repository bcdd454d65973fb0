"""Probe: weights that are taken out of the softmax of joined scores stand where their scores stood.

The scores along several axes, or of near and far keys, may be joined before one softmax. Its weights are then taken
apart again, and brought back to the axes of each part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.attention_search import TRANSPOSING, find_attentions
from heedful.conformance.evidence.chain import CAPS
from heedful.conformance.evidence.designs import reads_other_tokens, reads_trained_numbers
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.recomputed_attention import HALVES, departs_from_scores
from heedful.conformance.recording.dataflow import SPLITTING
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Finding
from heedful.observation import Step

TURNING: tuple[str, ...] = (*TRANSPOSING, "permute", "movedim", "rearrange")


@probe("weights-wrong")
def joined_scores(evidence: Evidence) -> Iterator[Finding]:
    """Compare the logarithms of a part's weights with its scores: within a row, only a number may lie between them."""
    others = find_attentions(evidence.on_other_tokens(1))
    for attention, other in zip(evidence.attentions, others, strict=False):
        join = attention.joining_step
        if (
            join is None
            or attention.scores.shape != other.scores.shape
            or _changes_on_the_way(evidence, attention, join)
        ):
            continue
        logs = attention.applied_weights.log(), other.applied_weights.log()
        if departs_from_scores(attention, other, *logs):
            yield _finding(attention, join)
            return


def _changes_on_the_way(evidence: Evidence, attention: RecordedAttention, join: Step) -> bool:
    """Check whether more than a number or a bias of positions lies between the scores and the step that joins them.

    Weights that lose digits afterwards cannot be compared, either.
    """
    before = tuple(step for step in attention.chain if step.index < join.index)
    until_join = replace(attention, chain=before)
    return (
        any(step.operation in CAPS for step in before)
        or any(step.dtype in HALVES for step in attention.chain)
        or reads_trained_numbers(evidence.baseline, until_join)
        or reads_other_tokens(evidence.baseline, until_join)
    )


def _finding(attention: RecordedAttention, join: Step) -> Finding:
    """Return the finding on the line that turns the weights of a part, or else the one that turns its scores."""
    chain = [step for step in attention.chain if step.operation in (*TURNING, *SPLITTING)]
    after = [step for step in chain if step.index > join.index]
    path = after or chain
    turns = [step for step in path if step.operation == "permute"] or path
    proof = (
        "The weights of this part of a softmax do not belong to the queries and keys whose scores were joined: they "
        "are taken out in another order of axes."
    )
    case = f"{attention.scores.shape[1]} queries, {attention.scores.shape[2]} keys"
    place = SourceLine.of(turns[0] if turns else attention.context_step)
    remedy = "Undo the order of axes that the scores were joined in, and no other."
    return Finding("weights-wrong", "bug", proof, case, place, remedy)
