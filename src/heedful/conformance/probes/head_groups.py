"""Probe: neighbouring query heads share a key/value head."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.evidence import CHANGED, Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import steps_from_projection, steps_to_next_projection
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.observation import tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.recording.target_source import prose_about
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

REPEATING: tuple[str, ...] = (  # the likeliest first
    *("repeat", "repeat_interleave", "tile", "expand", "cat", "stack", "getitem", "index_select"),
)


@probe("group-order")
def head_groups(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Find the query heads that share a key head, and check that they are neighbours."""
    if evidence.inputs.sizes[1] <= CHANGED:
        return
    for index, attention in enumerate(evidence.attentions):
        entries = evidence.rows_of_entries(index)
        if entries is not None:
            yield from _compare_groups(evidence, attention, entries[0])
            return


def _compare_groups(
    evidence: Evidence, attention: RecordedAttention, rows: Tensor
) -> Iterator[Finding | Fact]:
    """Yield the number of heads, and a finding if query head h does not read key head h // (Hq // Hkv).

    Args:
        evidence: the runs.
        attention: one attention of the first of them.
        rows: the rows of its tensors (B·H, …) that belong to the first sequence.
    """
    Hq, heads = len(rows), rows[_head_order(evidence, attention, rows)]
    for role in ("key", "value"):
        groups = _groups(getattr(attention, role)[heads])
        Hkv = max(groups) + 1
        if role == "key":
            yield Fact("heads", f"{Hq}, sharing {Hkv} key heads" if Hkv < Hq else f"{Hq}")
        read_equally = len(set(Counter(groups).values())) == 1
        if Hkv == Hq or groups == sorted(groups) or not read_equally:
            continue  # heads that are alike by chance share nothing
        read = ", ".join(str(group) for group in groups)
        expected = ", ".join(str(h * Hkv // Hq) for h in range(Hq))
        path = steps_from_projection(evidence.baseline, getattr(attention, f"{role}_source"))
        step = _repeating_step(path)
        yield Finding(
            "group-order",
            "convention" if _is_stated(evidence, step) else "bug",
            f"Query heads 0 … {Hq - 1} read {role} heads {read}. Neighbours should share one: {expected}.",
            f"{Hq} heads on {Hkv}",
            SourceLine.of(step or attention.scores_step),
        )
        return


def _groups(heads: Tensor) -> list[int]:
    """Return each head's number, where distinct heads are numbered in order of appearance."""
    distinct: list[Tensor] = []
    groups = []
    for head in heads:
        equal = (n for n, other in enumerate(distinct) if not differing_entries(other, head).any())
        group = next(equal, len(distinct))
        if group == len(distinct):
            distinct.append(head)
        groups.append(group)
    return groups


def _head_order(evidence: Evidence, attention: RecordedAttention, rows: Tensor) -> Tensor:
    """Return the order of the heads within a token's merged row; 0, 1, 2, … if that is unknown."""
    path = steps_to_next_projection(evidence.baseline, attention.context_step)
    merged = None if len(path) < 2 else tensor_of(path[-1])
    if merged is None or merged.numel() != attention.context.numel():
        return torch.arange(len(rows))
    # The last token's contexts are searched for: under a causal mask, the first token's are alike within a group.
    features = merged.flatten()
    places = [(features - attention.context[row, -1, 0]).abs().argmin() for row in rows]
    gaps = torch.stack(places).sort().values.diff()
    if (
        len(set(gaps.tolist())) > 1
    ):  # a place of another head was found, which holds nearly the same number
        return torch.arange(len(rows))
    return torch.stack(places).argsort()


def _is_stated(evidence: Evidence, step: Step | None) -> bool:
    """Check whether the code says that all heads are repeated in turn: in a pattern of einops, or in a comment."""
    patterned = step is not None and re.search(r"-> [^'\"]*\((r|g|rep|groups?) \w+\)", step.source)
    prose = prose_about(evidence.subject.callee)
    return bool(patterned or re.search(r"(instead of|not) (repeat\W*)?interleav", prose))


def _repeating_step(path: list[Step]) -> Step | None:
    """Return the step of a path that most likely repeats keys or values for their groups."""
    for operation in REPEATING:
        steps = [step for step in path if step.operation == operation]
        if steps:
            return steps[-1]
    return None
