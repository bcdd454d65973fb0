"""Probe: rotary embeddings rotate by the position of a token, not by the index of its head or of its sequence."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.rotations import Rotation, find_rotation_along, is_near
from heedful.conformance.recording.call_sites import call_line
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding


@probe("rotary-mismatch")
def rotary_axis(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Recover matrices that rotate queries, or keys, along an axis that is not that of the tokens."""
    if evidence.subject.fixed_sizes is not None:
        return
    for attention in evidence.attentions:
        for rotated, source in (
            ("queries", attention.query_source),
            ("keys", attention.key_source),
        ):
            rotation = find_rotation_along(evidence, source, attention.query.shape[-1])
            if rotation is not None and _counts_positions(rotation):
                yield _report(evidence, attention, rotated, rotation)
                return


def _counts_positions(rotation: Rotation) -> bool:
    """Check whether each map is the first one turned further by the same rotation, as those of positions are."""
    maps = rotation.maps
    turns = maps[1:] @ maps[:-1].mT
    return rotation.preserves_norms and is_near(turns, turns[:1].expand_as(turns))


def _report(
    evidence: Evidence, attention: RecordedAttention, rotated: str, rotation: Rotation
) -> Finding:
    last, count = rotation.steps[-1], len(rotation.maps)
    is_called = last.function != attention.scores_step.function
    line = call_line(evidence.baseline, evidence.subject.module, last) if is_called else None
    angle = torch.linalg.matrix_norm(rotation.maps[1] - rotation.maps[0]).item()
    return Finding(
        "rotary-mismatch",
        "bug",
        f"The {rotated} of all tokens are rotated alike, and those of each of {count} heads, or sequences, "
        f"differently: the first two rotations differ by {angle:.3g}. The rotation is along the wrong axis.",
        f"head size {rotation.maps.shape[-1]}",
        line or SourceLine.of(last),
        "Rotate along the axis of the tokens: transpose heads and tokens before, or count positions along that axis.",
    )
