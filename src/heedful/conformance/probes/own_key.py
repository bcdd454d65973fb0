"""Probe: every query sees its own key."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch.nn import functional as F

from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.evidence import CHANGED, Evidence
from heedful.conformance.evidence.masking import mask_building_line
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.differences import differing_entries, indices_with_any
from heedful.conformance.recording.target_source import prose_about
from heedful.conformance.reporting.finding import Fact, Finding

WITHOUT_ITSELF: re.Pattern[str] = re.compile(
    r"\b(not|never|cannot|can't|don't)( attend| see| look)( to| at)? (itself|themselves|self|its own)\b"
    r"|\b(exclud\w+|except|without) (itself|themselves|self-attention|its own)\b"
)
"""Words that announce that no token attends to itself, in lower case."""
SAME_DIRECTION = 1e-4
"""The difference of two unit vectors that are equal but for rounding."""
CUTTING_OFF = ("relu", "relu_", "clamp", "clamp_", "clip", "threshold", "hardtanh")
"""Steps that return 0 for all negative numbers, or may do so."""


@probe("self-hidden")
def own_key(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Check that queries see their own keys, on the diagonal of the weights, if no links of an example say which."""
    if evidence.subject.convention.links_tokens:
        return
    for index, attention in enumerate(evidence.attentions):
        _, Tq, Tk = attention.applied_weights.shape
        if Tq != Tk or Tq < 3 or not _hides_the_diagonal_only(attention):
            continue
        if not _has_own_keys(evidence, index) or _is_cut_off(attention) or _is_shared(attention):
            continue
        sees_nothing = not attention.visible[0, 0].any()
        yield Finding(
            "self-hidden",
            "suspicious" if _is_meant(evidence) else "bug",
            "No query sees its own key: the mask hides the diagonal, too"
            + (", and the first query sees no key at all." if sees_nothing else "."),
            f"T = {Tq}",
            mask_building_line(evidence, attention),
        )
        return


def _is_meant(evidence: Evidence) -> bool:
    """Check whether the code says so in words, or a Boolean identity matrix is the mask, as for small images."""
    if WITHOUT_ITSELF.search(prose_about(evidence.subject.callee)) is not None:
        return True
    steps = evidence.baseline.trace.steps
    return any(
        step.operation in ("masked_fill", "masked_fill_", "where")
        and any(
            source.step is not None
            and steps[source.step].operation == "eye"
            and steps[source.step].dtype == torch.bool
            for source in step.inputs
        )
        for step in steps
    )


def _has_own_keys(evidence: Evidence, index: int) -> bool:
    """Check whether the key of a token is made from it, and not from a second sequence."""
    key, changed = evidence.attentions[index].key, evidence.attentions_after(0, CHANGED)
    if index >= len(changed) or changed[index].key.shape != key.shape:
        return True
    return CHANGED in indices_with_any(differing_entries(key, changed[index].key), 1)


def _is_shared(attention: RecordedAttention) -> bool:
    """Check whether keys are scaled queries, of which the own one would outweigh all others (Kitaev et al. 2020)."""
    query, key = (F.normalize(it, dim=-1) for it in (attention.query, attention.key))
    return query.shape == key.shape and torch.allclose(query, key, atol=SAME_DIRECTION)


def _is_cut_off(attention: RecordedAttention) -> bool:
    """Check whether scores below 0 become weights of 0 in place of a softmax, which a trained bias may cause alone."""
    return attention.softmax_step is None and any(
        step.operation in CUTTING_OFF for step in attention.chain
    )


def _hides_the_diagonal_only(attention: RecordedAttention) -> bool:
    """Check whether all queries but the first see other keys, earlier ones among them, but not their own."""
    visible = attention.visible
    sees_itself = visible.diagonal(dim1=1, dim2=2)[:, 1:].any()
    sees_others = visible[:, 1:].any(-1).all()
    sees_the_past = visible.any(0)[:-1].tril(-1).any()  # otherwise the mask is inverted
    return bool(not sees_itself and sees_others and sees_the_past)
