"""Find out why a call with a cache gives wrong outputs: its queries, keys, values, or which keys it sees."""

from __future__ import annotations

from torch import Tensor

from heedful.conformance.evidence.alignment import PartialRun
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.masking import masking_step
from heedful.conformance.probes.cache_writes import find_wrong_write
from heedful.conformance.recording.assignments import first_of_slice
from heedful.conformance.recording.dataflow import ancestors, steps_from_projection
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.handed_numbers import line_computing_number
from heedful.conformance.recording.source import SourceLine
from heedful.observation import Source, Step

JOINING = ("cat", "concat", "concatenate", "hstack", "vstack")
CUTTING = ("getitem", "narrow", "index_select")

Cause = tuple[str, str, SourceLine | None]


def find_cache_cause(evidence: Evidence, partial: PartialRun) -> Cause:
    """Return the name of the finding, a reason ("" if none is known) and the line to blame.

    Args:
        evidence: the evidence about the subject.
        partial: the call with wrong outputs, beside the run on all tokens.
    """
    full_attentions = find_attentions(partial.whole)
    for attention, full in zip(find_attentions(partial.part), full_attentions, strict=False):
        if attention.query.shape[:2] != (len(full.query), partial.count):
            break
        cause = (
            _check_number_of_keys(evidence, partial, attention)
            or _check_queries(evidence, partial, attention, full)
            or _check_keys(partial, attention, full)
            or _check_values(partial, attention, full)
            or _check_visible_keys(partial, attention, full)
        )
        if cause is not None:
            return cause
    differing = [step for step in partial.part.trace if partial.differs(step)]
    return "cache-mismatch", "", _origin_line(partial, differing[-1] if differing else None)


def _check_number_of_keys(
    evidence: Evidence, partial: PartialRun, attention: RecordedAttention
) -> Cause | None:
    """Check that no key is missing. This comes first, since positions and masks are counted from the keys."""
    Tk, total = attention.key.shape[1], partial.stop
    if Tk >= min(total, evidence.expected.window or total):
        return None
    steps = steps_from_projection(partial.part, attention.key_source)
    joining = [step for step in steps if step.operation in JOINING]
    cutting = [step for step in steps if step.operation in CUTTING]
    blamed = joining or cutting or [attention.scores_step]
    kept = _line_keeping_tokens(partial, attention)
    return (
        "cache-mismatch",
        f"The queries of the call that starts at token {partial.start} meet {Tk} keys instead of {total}.",
        kept or SourceLine.of(blamed[-1]),
    )


def _line_keeping_tokens(partial: PartialRun, attention: RecordedAttention) -> SourceLine | None:
    """Return the line that cuts what a call returns for the next one, which has too few tokens.

    If the line takes the first token from a variable, return the line that assigns it.
    """
    steps = partial.part.trace.steps
    computing = (step for step in steps if step.operation not in ("detach", "clone", "contiguous"))
    read = {source.step for step in computing for source in step.inputs}
    cuts = [
        step
        for step in steps[attention.context_step.index :]
        if step.operation in CUTTING and step.index not in read and not step.unused
    ]
    return (first_of_slice(cuts[-1]) or SourceLine.of(cuts[-1])) if cuts else None


def _check_queries(
    evidence: Evidence, partial: PartialRun, attention: RecordedAttention, full: RecordedAttention
) -> Cause | None:
    expected = full.query[:, partial.start : partial.stop]
    if not differing_entries(attention.query, expected).any():
        return None
    source = attention.query_source
    rotated = _check_rotation(partial, source, "queries", attention.query, expected)
    if rotated is not None:
        position = _line_of_position(evidence, partial, source)
        return (*rotated[:2], position or rotated[2])
    line = _origin_line(partial, _step_of(partial, attention.query_source))
    return "cache-mismatch", "The queries differ from those of one call on all tokens.", line


def _check_keys(
    partial: PartialRun, attention: RecordedAttention, full: RecordedAttention
) -> Cause | None:
    total = partial.stop
    first = max(total - attention.key.shape[1], 0)  # a cache of a window keeps the newest keys
    keys, expected = attention.key[:, : total - first], full.key[:, first:total]
    wrong_tokens = differing_entries(keys, expected).any(0).any(-1)
    if not wrong_tokens.any():
        return None
    if wrong_tokens[partial.start - first :].any():
        rotated = _check_rotation(partial, attention.key_source, "keys", keys, expected)
        return rotated or _blame_cache(partial, attention.key_source, "keys")
    if _have_equal_norms(keys, expected):
        line = _origin_line(partial, _step_of(partial, attention.key_source))
        return "rotary-offset", "Cached keys are rotated to wrong positions.", line
    return _blame_cache(partial, attention.key_source, "keys")


def _check_values(
    partial: PartialRun, attention: RecordedAttention, full: RecordedAttention
) -> Cause | None:
    first = max(partial.stop - attention.value.shape[1], 0)
    values = attention.value[:, : partial.stop - first]
    if not differing_entries(values, full.value[:, first : partial.stop]).any():
        return None
    return _blame_cache(partial, attention.value_source, "values")


def _check_rotation(
    partial: PartialRun, source: Source, role: str, value: Tensor, expected: Tensor
) -> Cause | None:
    """Check whether this call's own rows have the right norms and wrong entries: a wrong rotary position."""
    steps = steps_from_projection(partial.part, source)
    if not steps or partial.differs(steps[0]) or not _have_equal_norms(value, expected):
        return None
    reason = f"The {role} of the call that starts at token {partial.start} are rotated to wrong positions."
    return "rotary-offset", reason, _origin_line(partial, _step_of(partial, source))


def _line_of_position(evidence: Evidence, partial: PartialRun, source: Source) -> SourceLine | None:
    """Return the line that computes the first position of rotated rows, if another function counts on from there."""
    steps, end = partial.part.trace.steps, _step_of(partial, source)
    behind = set[int]() if end is None else ancestors(steps, end)
    counting = [steps[it] for it in sorted(behind) if steps[it].operation == "arange"]
    numbers = (line_computing_number(evidence.subject.module, it) for it in counting)
    return next((line for line in numbers if line is not None), None)


def _have_equal_norms(a: Tensor, b: Tensor) -> bool:
    """Return True if the rows of two tensors have equal norms, as they do if one is the other rotated.

    The norms are compared in float32, because that is the dtype in which most models compute the angles.
    """
    return not differing_entries(a.norm(dim=-1).float(), b.norm(dim=-1).float()).any()


def _check_visible_keys(
    partial: PartialRun, attention: RecordedAttention, full: RecordedAttention
) -> Cause | None:
    """Check which keys are seen. If queries and keys are right, only the mask can be wrong."""
    first = max(partial.stop - attention.key.shape[1], 0)
    expected = full.visible[:, partial.start : partial.stop, first : partial.stop]
    visible = attention.visible[:, :, : partial.stop - first]
    wrong = (visible != expected).nonzero()
    if not len(wrong):
        return None
    l, i, j = (int(index) for index in wrong[0])
    token, count, expected_count = partial.start + i, visible[l, i].sum(), expected[l, i].sum()
    reason = (
        f"Token {token} sees key {first + j}, which it should not."
        if visible[l, i, j]
        else f"Token {token} sees {int(count)} of its {int(expected_count)} keys."
    )
    return "causal-alignment", reason, _mask_line(partial, attention, full)


def _mask_line(
    partial: PartialRun, attention: RecordedAttention, full: RecordedAttention
) -> SourceLine | None:
    """Return the line that makes the wrong mask, or the one that applies it without a cache and not with one."""
    weights = attention.softmax_step or attention.context_step
    origin = partial.origin(weights)
    if origin is weights and not attention.fused and attention.visible.all():
        return SourceLine.of(masking_step(full))
    return partial.place(origin)


def _origin_line(partial: PartialRun, step: Step | None) -> SourceLine | None:
    """Return the line at which a difference that reaches a step arises."""
    return None if step is None else partial.place(partial.origin(step))


def _step_of(partial: PartialRun, source: Source) -> Step | None:
    return None if source.step is None else partial.part.trace[source.step]


def _blame_cache(partial: PartialRun, source: Source, role: str) -> Cause:
    """Blame the write into the cache, or else the read from it."""
    reason = f"The {role} that the cache returns differ from those that were computed."
    write = find_wrong_write(partial, source)
    joining = [
        step
        for step in steps_from_projection(partial.part, source)
        if step.operation in JOINING and partial.differs(step) is not False
    ]
    if write is None and not joining:
        return "cache-mismatch", reason, _origin_line(partial, _step_of(partial, source))
    return "cache-mismatch", reason, SourceLine.of(write or joining[-1])
