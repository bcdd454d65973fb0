"""Probe: splitting features into heads keeps every token apart."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.conformance.calling.influence import mixes_sequences
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.evidence import CHANGED, Evidence
from heedful.conformance.evidence.noise import INDICES
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.token_labels import displacing_view, scattering_view, tearing_view
from heedful.conformance.recording.dataflow import (
    JOINING,
    PRODUCTS,
    SOFTMAXES,
    VIEWS,
    ancestors,
    is_projection,
    steps_from_projection,
    steps_from_tokens,
)
from heedful.conformance.recording.differences import (
    changed_entries,
    differing_entries,
    indices_with_any,
)
from heedful.conformance.recording.observation import Observation, tensor_of, value_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step
from heedful.shapes import times

REARRANGING: frozenset[str] = frozenset(("pad", "roll", "flip", "gather", "index_select"))
CHOOSING: tuple[str, ...] = ("getitem", "gather", "index_select", "take_along_dim")
PLURALS: dict[str, str] = {"query": "queries", "key": "keys", "value": "values"}


@probe("heads-mixed-split", "batch-mixed")
def head_split(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Change one token, and check that only this token's rows of queries, keys and values change."""
    _, T = evidence.inputs.sizes
    if T <= CHANGED:
        return
    pairs = zip(evidence.attentions, evidence.attentions_after(0, CHANGED), strict=False)
    for attention, changed in pairs:
        if _follows_another(evidence, attention):
            continue
        for role in PLURALS:
            before, after = getattr(attention, role), getattr(changed, role)
            if before.shape != after.shape:
                continue
            differing = differing_entries(before, after)
            rows = indices_with_any(differing, 1)
            own_row = rows in ([CHANGED], []) and before.shape[1] == T
            block = len(rows) <= 1 and role != "query"  # keys and values may come in blocks
            if own_row or block:
                continue
            answer = _answer(evidence, attention, changed, role, differing)
            if answer is not None:
                yield answer
            if isinstance(answer, Finding):
                return
    yield from _torn_operands(evidence)


def _torn_operands(evidence: Evidence) -> Iterator[Finding]:
    """Report an operand of a product that a view has torn or displaced.

    It is one of a product that does not compare tokens, or one that is computed from other tokens alone than those that
    are changed.
    """
    B, _ = evidence.inputs.sizes
    for step in evidence.baseline.trace:
        for source in step.inputs if step.operation in PRODUCTS else ():
            path = steps_from_projection(evidence.baseline, source)
            if evidence.attentions and (not path or _changes(evidence, path[0])):
                continue
            T = path[0].shape[-2] if path and len(path[0].shape) > 2 else 0
            torn, displaced = tearing_view(path), displacing_view(path, T)
            view = torn or displaced
            if view is None:
                continue
            rows = "several of the rows" if torn else "rows of other tokens, in other heads, of"
            proof = (
                f"The features of one token are spread over {rows} {times(view.shape)}, beside those of others: a view "
                "mixes tokens."
            )
            case = f"B = {B}, T = {T}"
            yield Finding("heads-mixed-split", "bug", proof, case, SourceLine.of(view))
            return


def _changes(evidence: Evidence, step: Step) -> bool:
    """Check whether a step depends on the token that is changed."""
    changed = changed_entries(evidence.baseline, evidence.after(0, CHANGED), step)
    return changed is None or bool(changed.any())


def _follows_another(evidence: Evidence, attention: RecordedAttention) -> bool:
    """Check whether an attention reads the output of another one, which has mixed the tokens.

    A softmax tells of one whose queries do not depend on the tokens, such as slots at first.
    """
    steps, scores_step = evidence.baseline.trace.steps, attention.scores_step
    earlier = ancestors(steps, scores_step) - {scores_step.index}
    follows_softmax = any(steps[it].operation in SOFTMAXES for it in earlier)
    return follows_softmax or any(it.context_step.index in earlier for it in evidence.attentions)


def _answer(
    evidence: Evidence,
    attention: RecordedAttention,
    after: RecordedAttention,
    role: str,
    differing: Tensor,
) -> Finding | Fact | None:
    """Return the finding on one role's rows, which change though their token does not, or a fact if that is a design.

    Args:
        evidence: The runs.
        attention: One attention of the first of them.
        after: The same attention, with token `CHANGED` changed.
        role: "query", "key" or "value".
        differing: (L, length, D) Boolean, the entries of this role that change with token `CHANGED`.
    """
    B, T = evidence.inputs.sizes
    length, rows = differing.shape[1], indices_with_any(differing, 1)
    source: Source = getattr(attention, f"{role}_source")
    path = _steps_from_tokens(evidence, source)
    mixing = _first_mixing_step(evidence.baseline, evidence.after(0, CHANGED), path)
    step = mixing or _last_view(path) or attention.scores_step
    if any(_is_choice(evidence, it) for it in path):
        return None  # of the tokens that the data or chance select, as in sparse attention
    name = "heads-mixed-split"
    projected = steps_from_projection(evidence.baseline, source)
    torn = tearing_view(projected)
    scattered = scattering_view(projected, evidence.subject.convention.grid_of(T), length)
    if scattered is not None:
        step = scattered
        proof = (
            f"The {length} rows that are compared hold pixels from all over the image, no lines or columns of it: a "
            "view takes another axis for theirs."
        )
    elif torn is not None:
        step = torn
        proof = (
            f"The features of one token are spread over several of the {length} rows that are compared, beside those "
            "of others: a view mixes tokens."
        )
    elif length == B and length != T and mixes_sequences(evidence.subject, evidence.inputs):
        if evidence.is_along_batch:
            return None
        name = "batch-mixed"
        proof = f"The scores compare the {B} sequences of the batch with each other, not the {T} tokens."
    elif mixing is not None and (_computes(mixing) or _copies(evidence, mixing)):
        return Fact(
            PLURALS[role], f"mixed from several tokens by {mixing.operation} in {mixing.name!r}"
        )
    elif length == 1 and 1 in evidence.subject.convention.grid_of(T):
        return None  # attention along an axis of an image that has one pixel
    elif length == 1 and not evidence.subject.batched:
        return None  # the rows may be one vector for each sequence
    elif length != T:
        keys_differing = differing_entries(attention.key, after.key)
        if not (_has_tokens_apart(differing, B, T) and _has_tokens_apart(keys_differing, B, T)):
            return None  # a query may meet the keys of its neighborhood alone
        if any(is_projection(it) and length in it.shape[1:-1] for it in projected[:1]):
            return Fact(PLURALS[role], f"{length} parts of each token, split before its projection")
        proof = (
            f"The scores compare {length} × {length} heads with each other, not the {T} tokens: the axis of "
            "tokens is not the second to last."
        )
        step = _meeting_of_operands(evidence, attention) or step
    elif len(rows) == 1 and (
        evidence.subject.convention.is_image
        or (mixing is None and _reorders_tokens(evidence, path))
    ):
        return None  # tokens in another order, as in windows that are shifted, or pixels by columns
    else:
        proof = (
            f"Changing token {CHANGED} changes {_first_rows(rows)} of the {PLURALS[role]}: a view mixes the "
            "features of different tokens."
        )
    unsure = name == "batch-mixed" and evidence.subject.convention.is_unsure
    level = "suspicious" if unsure else "bug"
    return Finding(name, level, proof, f"B = {B}, T = {T}", SourceLine.of(step))


def _meeting_of_operands(evidence: Evidence, attention: RecordedAttention) -> Step | None:
    """Return the product of queries and keys if each operand has a split of its own: one line is to be edited."""
    sources = (attention.query_source, attention.key_source, attention.value_source)
    views = [_last_view(steps_from_projection(evidence.baseline, source)) for source in sources]
    lines = {None if view is None else view.line for view in views}
    return attention.scores_step if None not in lines and len(lines) == len(sources) else None


def _steps_from_tokens(evidence: Evidence, source: Source) -> list[Step]:
    """Return the steps from a projection to an operand, or from the tokens if the projection mixes them already."""
    path = steps_from_projection(evidence.baseline, source)
    mixing = _first_mixing_step(evidence.baseline, evidence.after(0, CHANGED), path)
    if not path or mixing is not path[0]:
        return path
    steps = evidence.baseline.trace.steps
    from_tokens = steps_from_tokens(steps)
    return [steps[index] for index in sorted(ancestors(steps, path[-1]) & from_tokens)]


def _reorders_tokens(evidence: Evidence, path: list[Step]) -> bool:
    """Check whether a step of a path, or before it, puts tokens in an order that it is given or that it shifts."""
    steps = evidence.baseline.trace.steps
    behind = set[int]().union(*(ancestors(steps, step) for step in path[:1]))
    before = [steps[index] for index in sorted(behind)]
    return any(
        step.operation in REARRANGING
        or (step.operation == "getitem" and any(_is_index(evidence, it) for it in step.inputs[1:]))
        for step in (*before, *path)
    )


def _is_choice(evidence: Evidence, step: Step) -> bool:
    """Check whether a step takes tokens by an index that is computed from tokens, or drawn at random."""
    if step.operation not in CHOOSING:
        return False
    steps = evidence.baseline.trace.steps
    indices = [it.step for it in step.inputs if it.step is not None and _is_index(evidence, it)]
    made = {*indices}.union(*(ancestors(steps, steps[it]) for it in indices))
    drawn = any(steps[it].operation in INDICES for it in made)
    return drawn or not made.isdisjoint(steps_from_tokens(steps))


def _is_index(evidence: Evidence, source: Source) -> bool:
    value = value_of(evidence.baseline, source)
    return value is not None and value.dim() > 0 and value.dtype in (torch.int64, torch.int32)


def _computes(step: Step) -> bool:
    """Check whether a step computes new entries, or joins those of different tokens.

    One that only rearranges them can mix tokens by mistake alone.
    """
    return step.operation not in (VIEWS - JOINING) | REARRANGING


def _copies(evidence: Evidence, step: Step) -> bool:
    """Check whether a step takes tokens several times, as the neighbors of each one."""
    given, taken = value_of(evidence.baseline, step.inputs[0]), tensor_of(step)
    if step.operation not in CHOOSING or given is None or taken is None:
        return False
    return taken.numel() > given.numel()


def _has_tokens_apart(differing: Tensor, B: int, T: int) -> bool:
    """Check whether the rows of different tokens are never compared: each token has leading indices of its own."""
    leading = differing.flatten(1).any(1)
    return len(differing) % (B * T) == 0 and int(leading.sum()) == len(differing) // (B * T)


def _first_mixing_step(before: Observation, after: Observation, path: list[Step]) -> Step | None:
    """Return the first step of a path after which no axis holds the changed token at one index."""
    padded = False
    for step in path:
        padded |= step.operation == "pad"
        changed = changed_entries(before, after, step)
        if changed is None or not changed.any() or changed.dim() < 2:
            continue
        if not _is_one_token(changed, *before.inputs.sizes, padded):
            return step
    return None


def _is_one_token(changed: Tensor, B: int, T: int, padded: bool) -> bool:
    """Check whether an axis of T tokens, or of B × T, has all changes at one index.

    Two or three axes may hold the tokens as pixels, perhaps without a first token for the class. Padding adds entries.
    """
    grids = (
        (axis, changed.flatten(axis, axis + more))
        for more in (1, 2)
        for axis in range(1, changed.dim() - more)
    )
    return any(
        (size in (T - 1, T, B * T) or (padded and size > T))
        and len(indices_with_any(changed, axis)) == 1
        for axis, size in enumerate(changed.shape)
    ) or any(
        grid.shape[axis] in (T, T - 1) and len(indices_with_any(grid, axis)) == 1
        for axis, grid in grids
    )


def _last_view(path: list[Step]) -> Step | None:
    """Return the last step of a path that rearranges entries, plain transposes excepted."""
    views = [step for step in path if step.operation in VIEWS - {"T", "mT"}]
    return views[-1] if views else None


def _first_rows(rows: list[int]) -> str:
    """Return a phrase such as "rows 3, 4", with four numbers at most."""
    numbers = ", ".join(map(str, rows[:4]))
    return f"{'rows' if len(rows) > 1 else 'row'} {numbers}{', …' if len(rows) > 4 else ''}"
