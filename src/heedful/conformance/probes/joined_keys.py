"""Probe: with the keys and values of earlier tokens as its cache, an attention gives the outputs of one call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from heedful.conformance.calling import names
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.rotary_tables import PositionTable
from heedful.conformance.evidence.alignment import PartialRun
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.noise import draws_noise
from heedful.conformance.probes.cache_causes import find_cache_cause
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.observation import Observation
from heedful.conformance.reporting.finding import Fact, Finding

LAST = 1
"""The number of tokens of the call with a cache; some attentions take no more than one."""

DECODER = "is_decoder"
"""The attribute of a module that says whether it may have a cache."""


@probe("cache-mismatch", "causal-alignment", "rotary-offset")
def joined_keys(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Give the keys and values of all tokens but the last to an attention that is not causal, and joins them itself.

    The last token sees all keys then, as in one call. Where an attention is causal, several calls with a cache show
    whether it is right.
    """
    subject, (B, T) = evidence.subject, evidence.inputs.sizes
    name = next((it for it in names.CACHES if it in subject.target.parameters), None)
    constants = subject.convention.constants
    has_tables = any(isinstance(it, PositionTable) for it in constants.values())
    if name is None or name in subject.target.required or has_tables or T <= LAST + 1:
        return
    if subject.cache_use is not None or evidence.is_causal or len(evidence.attentions) != 1:
        return
    if draws_noise(evidence):
        return  # other numbers of tokens get other random numbers
    (whole,) = evidence.attentions
    start = T - LAST
    for past in _pasts(whole, B, start):
        run = _run_after(evidence, {**constants, name: past}, start)
        if run is None or not _joins(run, whole):
            continue
        expected = evidence.baseline.output[:, start:]
        if expected.shape == run.output.shape and evidence.differs(run.output, expected).any():
            cause, reason, line = find_cache_cause(
                evidence, PartialRun(run, evidence.baseline, start)
            )
            distance = (run.output - expected).abs().max()
            proof = (
                f"With the keys and values of the {start} tokens before as {name}, the outputs from token {start} on "
                f"differ by {distance:.3g} from those of one call."
            )
            case = f"B = {B}, T = {start} + {LAST}"
            yield Finding(cause, "bug", f"{reason} {proof}".strip(), case, line)
        return


def _pasts(attention: RecordedAttention, B: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the first keys and values of an attention, (B, H, T, D) and (B, T, H, D)."""
    if len(attention.key) % B:
        return
    first, second = (it[:, :count].unflatten(0, (B, -1)) for it in (attention.key, attention.value))
    yield first, second
    yield first.transpose(1, 2), second.transpose(1, 2)


def _run_after(evidence: Evidence, constants: Mapping[str, Any], start: int) -> Observation | None:
    """Return the run on the last tokens, of a decoder if that is a flag, with some constants; None if it raises."""
    T, copy = evidence.inputs.sizes[1], evidence.subject.fresh(keep_state=True)
    for part in () if copy.module is None else copy.module.modules():
        if isinstance(getattr(part, DECODER, None), bool):
            setattr(part, DECODER, True)
    copy = replace(copy, convention=replace(copy.convention, constants=constants))
    run = attempt(lambda: copy.record(evidence.inputs.tokens(start, T)))
    return None if isinstance(run, Exception) else run


def _joins(run: Observation, whole: RecordedAttention) -> bool:
    """Check whether the only attention of a run has the keys and values of another one."""
    found = list(find_attentions(run))
    return len(found) == 1 and all(
        own.shape == other.shape and not differing_entries(own, other).any()
        for own, other in ((found[0].key, whole.key), (found[0].value, whole.value))
    )
