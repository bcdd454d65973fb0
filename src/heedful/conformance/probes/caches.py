"""Whether tokens that come in several calls, with a cache between them, are attended to as if they came in one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from heedful.conformance.calling.exceptions import attempt, describe_exception, raising_line
from heedful.conformance.calling.mask_forms import LENGTHS
from heedful.conformance.evidence.alignment import PartialRun
from heedful.conformance.evidence.attention import FAINT, RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.causality import masking_step
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import ancestors, is_projection, steps_from_projection
from heedful.conformance.recording.differences import changed_entries, differing_entries
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step

LARGE = 1e4  # finite: a right target may read unused slots, as long as it gives them a weight of 0
JOINING = ("cat", "concat", "concatenate", "hstack", "vstack")
SHAPING = ("le", "lt", "ge", "gt", "tril", "triu", "or", "__or__")  # what says which keys are seen
CUTTING = ("getitem", "narrow", "index_select")
KINDS = {
    "object": "{argument}: made first, passed in each call",
    "grown": "{argument}: None at first, then what came back",
    "buffers": "kept in the module, which is told {argument}",
}
Cause = tuple[str, str, SourceLine | None]


@probe("cache-mismatch", "causal-alignment", "rotary-offset")
def cache(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Runs the tokens in several calls with a cache: each output must be that of one call for all."""
    use = evidence.subject.cache_use
    if use is None or evidence.subject.fixed_sizes is not None:
        return
    yield Fact("cache", KINDS[use.kind].format(argument=use.argument))
    for sizes in _splits(evidence.inputs.sizes[1]):
        finding = _of_split(evidence, sizes)
        if finding is not None:
            yield finding
            return


def _splits(T: int) -> list[tuple[int, ...]]:
    """Prefill and one token, prefill and several, the first few one by one, all mixed."""
    found = [(T - 1, 1), (T - T // 2, T // 2), (1,) * min(T, 4), (T // 2, 1, T - T // 2 - 1)]
    return [it for it in dict.fromkeys(found) if min(it) > 0]


def _of_split(evidence: Evidence, sizes: Sequence[int]) -> Finding | None:
    inputs = evidence.inputs.tokens(0, sum(sizes))
    outcome = attempt(lambda: evidence.subject.run_in_chunks(inputs, sizes))
    if isinstance(outcome, Exception):
        return _of_error(outcome, sizes)
    for part, start in zip(outcome, [0, *accumulate(sizes)], strict=False):
        excerpt = PartialRun(part, evidence.baseline, start)
        rows = evidence.baseline.output[:, start : excerpt.stop]
        if evidence.differs(part.output, rows).any():
            if start == 0 and _differs_anyway(evidence, part):
                return None
            name, what, place = _cause(evidence, excerpt)
            distance = (part.output - rows).abs().max()
            proof = (
                f"{what} With a cache the outputs from token {start} on differ by {distance:.3g}."
            )
            return Finding(name, "bug", proof.strip(), _case(evidence, sizes), place)
    return None


def _differs_anyway(evidence: Evidence, first: Observation) -> bool:
    """Whether the first tokens alone give other outputs than among more, without any cache, too."""
    return not evidence.differs(evidence.subject.run(first.inputs).detach(), first.output).any()


def _case(evidence: Evidence, sizes: Sequence[int]) -> str:
    B, T = evidence.inputs.sizes
    return f"B = {B}, T = {T} in calls of {' + '.join(map(str, sizes))}"


def _of_error(error: Exception, sizes: Sequence[int]) -> Finding | None:
    """What an exception in a call with a cache tells; None where the target says itself that it takes no such call."""
    if isinstance(error, ValueError | AssertionError | NotImplementedError):
        return None
    numbers = {int(it) for it in re.findall(r"\d+", str(error))}
    # Queries beside all keys: a square mask, which fits the first call alone.
    square = "size" in str(error) and numbers >= {sizes[-1], sum(sizes)}
    what = "No mask of its size fits the cached keys: it" if square else "With a cache it"
    misused = isinstance(error, TypeError | AttributeError)  # may be by the caller
    return Finding(
        "causal-alignment" if square else "cache-mismatch",
        "not-testable" if misused else "bug",
        f"{what} raises {describe_exception(error)}",
        f"calls of {' + '.join(map(str, sizes))} tokens",
        raising_line(error),
    )


# --- what is the first to go wrong -----------------------------------------------------------------


def _cause(evidence: Evidence, excerpt: PartialRun) -> Cause:
    """Queries, keys, values, or which keys are seen."""
    wholes = find_attentions(excerpt.whole)
    for attention, whole in zip(find_attentions(excerpt.part), wholes, strict=False):
        if attention.query.shape[:2] != (len(whole.query), excerpt.count):
            break
        found = (
            _missing(evidence, excerpt, attention)
            or _of_queries(excerpt, attention, whole)
            or _of_keys(excerpt, attention, whole)
            or _of_values(excerpt, attention, whole)
            or _of_visible(excerpt, attention, whole)
        )
        if found is not None:
            return found
    apart = [it for it in excerpt.part.trace if excerpt.differs(it)]
    return "cache-mismatch", "", _place(excerpt, apart[-1] if apart else None)


def _missing(evidence: Evidence, excerpt: PartialRun, attention: RecordedAttention) -> Cause | None:
    """Too few keys, from which positions and masks are counted, too."""
    Tk, total = attention.key.shape[1], excerpt.stop
    if Tk >= min(total, evidence.expected.window or total):
        return None
    way = steps_from_projection(excerpt.part, attention.key_source)
    joined = [it for it in way if it.operation in JOINING]
    joined = joined or [it for it in way if it.operation in CUTTING]
    return (
        "cache-mismatch",
        f"The queries of the call that begins with token {excerpt.start} meet {Tk} keys, not {total}.",
        SourceLine.of(joined[-1] if joined else attention.scores_step),
    )


def _of_queries(
    excerpt: PartialRun, attention: RecordedAttention, whole: RecordedAttention
) -> Cause | None:
    expected = whole.query[:, excerpt.start : excerpt.stop]
    if not differing_entries(attention.query, expected).any():
        return None
    turned = _of_turned(excerpt, attention.query_source, "queries", attention.query, expected)
    place = _place(excerpt, _step(excerpt, attention.query_source))
    return turned or ("cache-mismatch", "The queries are not those of one call for all.", place)


def _of_keys(
    excerpt: PartialRun, attention: RecordedAttention, whole: RecordedAttention
) -> Cause | None:
    total = excerpt.stop
    first = max(
        total - attention.key.shape[1], 0
    )  # a cache of a window's size holds the newest keys
    found, expected = attention.key[:, : total - first], whole.key[:, first:total]
    wrong = differing_entries(found, expected).any(0).any(-1)
    if not wrong.any():
        return None
    if wrong[excerpt.start - first :].any():
        turned = _of_turned(excerpt, attention.key_source, "keys", found, expected)
        return turned or _of_cached(excerpt, attention.key_source, "keys")
    if _as_long(found, expected):
        place = _place(excerpt, _step(excerpt, attention.key_source))
        return "rotary-offset", "Cached keys are turned to other positions.", place
    return _of_cached(excerpt, attention.key_source, "keys")


def _of_values(
    excerpt: PartialRun, attention: RecordedAttention, whole: RecordedAttention
) -> Cause | None:
    first = max(excerpt.stop - attention.value.shape[1], 0)
    expected = whole.value[:, first : excerpt.stop]
    if not differing_entries(attention.value[:, : excerpt.stop - first], expected).any():
        return None
    return _of_cached(excerpt, attention.value_source, "values")


def _of_turned(
    excerpt: PartialRun, source: Source, what: str, value: Tensor, expected: Tensor
) -> Cause | None:
    """This call's own rows are as long as they should be, and not the same: turned to another position."""
    way = steps_from_projection(excerpt.part, source)
    if not way or excerpt.differs(way[0]) or not _as_long(value, expected):
        return None
    which = f"The {what} of the call that begins with token {excerpt.start}"
    place = _place(excerpt, _step(excerpt, source))
    return "rotary-offset", f"{which} are turned to other positions.", place


def _as_long(a: Tensor, b: Tensor) -> bool:
    """Whether the rows of two tensors are equally long, as they are when one is the other, turned."""
    return not differing_entries(a.norm(dim=-1), b.norm(dim=-1)).any()


def _of_visible(
    excerpt: PartialRun, attention: RecordedAttention, whole: RecordedAttention
) -> Cause | None:
    """Which keys are seen: with the right queries and keys only a mask can go wrong."""
    first = max(excerpt.stop - attention.key.shape[1], 0)
    expected = whole.visible[:, excerpt.start : excerpt.stop, first : excerpt.stop]
    seen = attention.visible[:, :, : excerpt.stop - first]
    wrong = (seen != expected).nonzero()
    if not len(wrong):
        return None
    l, i, j = (int(it) for it in wrong[0])
    what = (
        f"Token {excerpt.start + i} sees key {first + j}, which it should not."
        if seen[l, i, j]
        else f"Token {excerpt.start + i} sees {int(seen[l, i].sum())} of its {int(expected[l, i].sum())} keys."
    )
    return "causal-alignment", what, _mask_place(excerpt, attention, whole)


def _mask_place(
    excerpt: PartialRun, attention: RecordedAttention, whole: RecordedAttention
) -> SourceLine | None:
    """Where a wrong mask was made; where it is applied without a cache, if with one it is not."""
    weights = attention.softmax_step or attention.context_step
    origin = excerpt.origin(weights)
    if origin is weights and not attention.fused and attention.visible.all():
        return SourceLine.of(masking_step(whole))
    return excerpt.place(origin)


def _place(excerpt: PartialRun, step: Step | None) -> SourceLine | None:
    """Where a difference came up that has reached a step."""
    return None if step is None else excerpt.place(excerpt.origin(step))


def _step(excerpt: PartialRun, source: Source) -> Step | None:
    return None if source.step is None else excerpt.part.trace[source.step]


# --- what a cache gives back -----------------------------------------------------------------------


def _of_cached(excerpt: PartialRun, source: Source, what: str) -> Cause:
    """Rows that do not come out of the cache as they were computed: written wrong, or read wrong."""
    told = f"The {what} do not come out of the cache as they were computed."
    written = _wrongly_written(excerpt, source)
    joined = [it for it in steps_from_projection(excerpt.part, source) if it.operation in JOINING]
    joined = [it for it in joined if excerpt.differs(it) is not False]
    if written is None and not joined:
        return "cache-mismatch", told, _place(excerpt, _step(excerpt, source))
    return "cache-mismatch", told, SourceLine.of(written or joined[-1])


def _wrongly_written(excerpt: PartialRun, source: Source) -> Step | None:
    """The write into a cache, on the way to an operand, that puts the wrong rows in, or into the wrong slots."""
    way = steps_from_projection(excerpt.part, source)
    direct = _not_through_writes(excerpt.part, source)
    new = any(is_projection(it) for it in way if it.index in direct)
    for step in (it for it in way if it.in_place):
        put_in = [it for it in map(partial(_step, excerpt), step.inputs) if it is not None]
        others = new and not any(it.index in direct for it in put_in)
        if others or not all(_holds(excerpt, step, it) for it in put_in):
            return step
    return None


def _not_through_writes(observation: Observation, source: Source) -> set[int]:
    """The steps behind an operand that reach it without a cache."""
    found: set[int] = set()
    todo = [source.step]
    while todo:
        index = todo.pop()
        if index is None or index in found or observation.trace[index].in_place:
            continue
        found.add(index)
        todo += [it.step for it in observation.trace[index].inputs]
    return found


def _holds(excerpt: PartialRun, written: Step, put_in: Step) -> bool:
    """Whether a cache, after a write, begins with all rows that were put in so far; True where that cannot be told."""
    matching_step, held = excerpt.matching_step(put_in), tensor_of(written)
    expected = None if matching_step is None else tensor_of(matching_step)
    T = excerpt.whole.inputs.sizes[1]
    if expected is None or held is None or expected.dim() != held.dim() or T not in expected.shape:
        return True
    axis = expected.shape.index(T)
    if held.shape[axis] < excerpt.stop or put_in.shape[axis] != excerpt.count:
        return True
    held, expected = (it.narrow(axis, 0, excerpt.stop) for it in (held, expected))
    held = held[: len(expected)]  # there may be room for more sequences
    return held.shape != expected.shape or not differing_entries(held, expected).any()


@probe("left-padding-positions", "cache-mismatch")
def padded_cache(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Runs a left-padded batch with a cache: each real token's output must be that of one call for all."""
    subject, (B, T) = evidence.subject, evidence.inputs.sizes
    padding, attends = subject.padding, subject.attention_mask
    told_alike = padding is not None and attends is not None and padding.name == attends.name
    if (
        subject.cache_use is None
        or padding is None
        or padding.form == LENGTHS
        or told_alike
        or T < 4
    ):
        return
    sizes = (T - 1, 1)
    kept = torch.arange(T) >= torch.arange(B).clamp_max(T - 2)[:, None]
    whole = attempt(lambda: subject.record(evidence.inputs, keep=kept))
    parts = attempt(lambda: subject.run_in_chunks(evidence.inputs, sizes, keep=kept))
    if isinstance(whole, Exception) or isinstance(parts, Exception):
        return  # it takes no such mask beside a cache
    rows = whole.output[:, -1:]
    if not evidence.differs(parts[1].output, rows).any() or _of_split(evidence, sizes):
        return
    name, what, place = _cause(evidence, PartialRun(parts[1], whole, T - 1))
    name = "left-padding-positions" if name == "rotary-offset" else "cache-mismatch"
    distance = (parts[1].output - rows).abs().max()
    proof = f"{what} With padding on the left, and only then, a cache changes the last outputs by {distance:.3g}."
    yield Finding(name, "bug", proof.strip(), _case(evidence, sizes), place)


@probe("cache-garbage-read")
def unused_slots(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Fills a cache's slots with large numbers before anything is in them: no output may change."""
    subject, inputs = evidence.subject, evidence.inputs
    use = subject.cache_use
    if use is None or subject.fixed_sizes is not None:
        return
    empty_seen = _empty_seen(evidence)
    if empty_seen is not None:
        yield empty_seen
        return
    if not use.capacity:
        return
    sizes = _splits(inputs.sizes[1])[0]
    outcomes = [
        attempt(lambda it=it: subject.run_in_chunks(inputs, sizes, unused=it))
        for it in (0.0, LARGE)
    ]
    if any(isinstance(it, Exception) for it in outcomes):
        return  # the probe before this tells
    for empty, full, start in zip(*outcomes, [0, *accumulate(sizes)], strict=False):
        if evidence.differs(empty.output, full.output).any():
            distance = (empty.output - full.output).abs().max()
            yield Finding(
                "cache-garbage-read",
                "bug",
                f"{LARGE:.0f} in the slots that no token was written to yet changes the outputs from token {start} on "
                f"by {distance:.3g}.",
                _case(evidence, sizes),
                _where_read(PartialRun(full, evidence.baseline, start), empty),
            )
            return


def _empty_seen(evidence: Evidence) -> Finding | None:
    """Weight on slots of a cache that was made within the call."""
    for attention in evidence.attentions:
        if (attention.empty_slot_weight > FAINT).any():
            return Finding(
                "cache-garbage-read",
                "bug",
                f"Slots that hold no token yet get up to {attention.empty_slot_weight.max():.3g} of a query's weight.",
                "B = {}, T = {}".format(*evidence.inputs.sizes),
                SourceLine.of(_masked_by(evidence.baseline, attention)),
            )
    return None


def _masked_by(observation: Observation, attention: RecordedAttention) -> Step | None:
    """What made the mask that is applied to the scores; else the step that applies it."""
    applied = masking_step(attention)
    chain = {it.index for it in attention.chain}
    made = [it.step for it in (applied.inputs if applied else ()) if it.step not in chain]
    steps = observation.trace.steps
    behind = {index for it in made if it is not None for index in ancestors(steps, steps[it])}
    shaped = [steps[it] for it in sorted(behind) if steps[it].operation in SHAPING]
    return shaped[-1] if shaped else applied or attention.scores_step


def _where_read(excerpt: PartialRun, empty: Observation) -> SourceLine | None:
    """The write that leaves a slot out, the mask that lets empty ones be seen, or the first step that reads one."""
    for attention, quiet in zip(
        find_attentions(excerpt.part), find_attentions(empty), strict=False
    ):
        for source in (attention.key_source, attention.value_source):
            written = _wrongly_written(excerpt, source)
            if written is not None:
                return SourceLine.of(written)
            if (quiet.empty_slot_weight > FAINT).any():
                return SourceLine.of(_masked_by(empty, quiet))
            for step in steps_from_projection(excerpt.part, source):
                changed = changed_entries(empty, excerpt.part, step)
                if not step.in_place and changed is not None and changed.any():
                    return SourceLine.of(step)
    return None
