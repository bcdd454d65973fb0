"""Probe: a mask does not hide the keys of the tokens and show those around them."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.masking import mask_applying_line
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.reporting.finding import Fact, Finding


@probe("mask-inverted")
def outside_keys(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Search for queries that see only keys which are the same for all tokens, as those around an image are."""
    B, T = evidence.inputs.sizes
    other = attempt(lambda: find_attentions(evidence.on_other_tokens(1)))
    if isinstance(other, Exception):
        return
    for attention, again in zip(evidence.attentions, other, strict=False):
        rows = _rows_seeing_constants_alone(attention, again)
        if rows is not None and rows.any():
            yield Finding(
                "mask-inverted",
                "bug",
                f"In {int(rows.sum())} of {len(rows)} groups of keys, the mask hides every key that depends on the "
                "tokens and shows those that do not, such as the padding around an image.",
                f"B = {B}, T = {T}",
                mask_applying_line(attention),
            )
            return


def _rows_seeing_constants_alone(
    attention: RecordedAttention, again: RecordedAttention
) -> Tensor | None:
    """Return (L,) Boolean, True where keys of both kinds meet queries that all see constant ones alone.

    Args:
        attention: An attention.
        again: The same in a run on other tokens.
    """
    if (
        attention.key.shape != again.key.shape
        or attention.key.shape[:2] != attention.visible[:, 0].shape
    ):
        return None
    of_tokens = differing_entries(attention.key, again.key).any(-1)  # (L, Tk)
    visible = attention.visible.any(1)
    both = of_tokens.any(1) & (~of_tokens).any(1)
    return both & visible.any(1) & ~(visible & of_tokens).any(1)
