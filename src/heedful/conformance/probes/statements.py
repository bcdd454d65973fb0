"""Probe: the target is what its user says that it is."""

from __future__ import annotations

import re
from collections.abc import Iterator

from heedful.conformance.calling.options import option_with
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.fills import FILLING_OPERATIONS
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding

NAME = "statement-contradicted"
BIDIRECTIONAL: re.Pattern[str] = re.compile(r"bi-?_?directional", re.IGNORECASE)


@probe(NAME)
def statements(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Compare what the caller states about the target, and what its name says, with what the target does."""
    proofs = list(_contradictions(evidence))
    if proofs:
        yield Finding(NAME, "bug", " ".join(proofs), place=_line(evidence))


def _line(evidence: Evidence) -> SourceLine | None:
    """Return the line that fills in hidden scores of the first attention, or else that of its scores."""
    for attention in evidence.attentions[:1]:
        filling = (it for it in attention.chain if it.operation in FILLING_OPERATIONS)
        return SourceLine.of(next(filling, attention.scores_step))
    return None


def _contradictions(evidence: Evidence) -> Iterator[str]:
    """Yield a sentence for each statement that the target contradicts."""
    stated = evidence.stated
    if stated.causal is False and _sees_earlier_keys_alone(evidence):
        yield "The caller states that queries see later keys, but no output depends on a later token."
    elif BIDIRECTIONAL.search(evidence.subject.name) and _sees_earlier_keys_alone(evidence):
        yield "Its name says that queries see later keys, but no output depends on a later token."
    heads = set[int]() if stated.num_heads is None else _possible_heads(evidence)
    if heads and stated.num_heads not in heads:
        said = option_with("num_heads", str(stated.num_heads))
        yield f"The caller states {said}, but each sequence has {_listed(heads)}."
    if stated.window is not None and not evidence.expected.causal:
        width = _widest(evidence)
        if width > stated.window:
            said = option_with("window", str(stated.window))
            yield f"The caller states {said}, but a query sees {width} keys."


def _sees_earlier_keys_alone(evidence: Evidence) -> bool:
    """Check that outputs depend on earlier tokens and on no later one."""
    return bool(evidence.is_causal and evidence.influence[0, :, 0].tril(-1).any())


def _possible_heads(evidence: Evidence) -> set[int]:
    """Return the numbers of heads that the recorded attentions may have; none if it is not clear.

    An attention has a matrix of weights for each head. Attentions of one head each may together be the heads.
    """
    counts: set[int] = set()
    for index in range(len(evidence.attentions)):
        rows = evidence.rows_of_entries(index)
        if rows is None:
            return set()
        counts.add(len(rows[0]))
    if counts == {1}:
        total = len(evidence.attentions)
        return {number for number in range(1, total + 1) if total % number == 0}
    return counts


def _listed(heads: set[int]) -> str:
    return "1 head" if heads == {1} else f"{' or '.join(map(str, sorted(heads)))} heads"


def _widest(evidence: Evidence) -> int:
    """Return the largest number of keys that a query sees."""
    widths = [int(it.visible.sum(-1).max()) for it in evidence.attentions]
    return max(widths, default=0)
