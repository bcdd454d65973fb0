"""Whether every token, every head and every batch entry keeps to itself where it should."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.evidence import CHANGED, Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import (
    VIEWS,
    ancestors,
    parameter_names,
    steps_from_projection,
    steps_to_next_projection,
)
from heedful.conformance.recording.differences import (
    changed_entries,
    differing_entries,
    indices_with_any,
)
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step


@probe("heads-mixed-split", "batch-mixed")
def splitting(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Changes one token: of queries, keys and values only that token's rows may change."""
    _, T = evidence.inputs.sizes
    if T <= CHANGED:
        return
    after = evidence.after(0, CHANGED)
    for attention, other in zip(
        evidence.attentions, evidence.attentions_after(0, CHANGED), strict=False
    ):
        if _comes_later(evidence, attention):
            continue
        for role in ("query", "key", "value"):
            before, changed = getattr(attention, role), getattr(other, role)
            if before.shape != changed.shape:
                continue
            rows = indices_with_any(differing_entries(before, changed), 1)
            kept = rows in ([CHANGED], []) and before.shape[1] == T
            if kept or (len(rows) <= 1 and role != "query"):  # keys may come in blocks
                continue
            yield _mixed(evidence, attention, role, after, rows)
            return


def _comes_later(evidence: Evidence, attention: RecordedAttention) -> bool:
    """Whether an attention takes what another one has mixed."""
    behind = ancestors(evidence.baseline.trace.steps, attention.scores_step) - {
        attention.scores_step.index
    }
    return any(it.context_step.index in behind for it in evidence.attentions)


def _mixed(
    evidence: Evidence, attention: RecordedAttention, role: str, after: Observation, rows: list[int]
) -> Finding:
    B, T = evidence.inputs.sizes
    source: Source = getattr(attention, f"{role}_source")
    way = steps_from_projection(evidence.baseline, source)
    n = getattr(attention, role).shape[1]
    step = _first_spread(evidence.baseline, after, way, (B, T))
    if n == B and n != T:
        return Finding(
            "batch-mixed",
            "bug",
            f"Scores compare the {n} batch entries with each other, not the {T} tokens.",
            f"B = {B}, T = {T}",
            SourceLine.of(step or _last_view(way) or attention.scores_step),
        )
    if n != T:
        proof = (
            f"Scores compare {n} × {n} heads with each other, not the {T} tokens: the axis of tokens is not where the "
            "product takes it."
        )
    else:
        proof = (
            f"Changing token {CHANGED} changes the {role}'s rows {_some(rows)}: a view cuts tokens apart, so that "
            "heads mix them."
        )
    return Finding(
        "heads-mixed-split",
        "bug",
        proof,
        f"B = {B}, T = {T}",
        SourceLine.of(step or _last_view(way) or attention.scores_step),
    )


def _first_spread(
    before: Observation, after: Observation, way: list[Step], sizes: tuple[int, int]
) -> Step | None:
    """The first step on a way at which no axis of tokens holds the change in one place any more."""
    _, T = sizes
    for step in way:
        changed = changed_entries(before, after, step)
        if changed is None or not changed.any() or changed.dim() < 2:
            continue
        in_place = any(
            size == T and indices_with_any(changed, axis) == [CHANGED]
            for axis, size in enumerate(changed.shape)
        )
        if not in_place and not _flattened(changed, sizes):
            return step
    return None


def _flattened(changed: Tensor, sizes: tuple[int, int]) -> bool:
    """Whether tokens and batch entries lie along one axis."""
    B, T = sizes
    return any(
        size == B * T and len(indices_with_any(changed, axis)) == 1
        for axis, size in enumerate(changed.shape)
    )


def _last_view(way: list[Step]) -> Step | None:
    return next(
        (
            step
            for step in reversed(way)
            if step.operation in VIEWS and step.operation not in ("T", "mT")
        ),
        None,
    )


@probe("batch-mixed")
def batch(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Changes a token of one sequence: no other sequence of the batch may change."""
    B, T = evidence.inputs.sizes
    for b in range(B):
        for c in range(B):
            if b == c or not evidence.influence[b, :, c, :].any():
                continue
            i, j = (int(it) for it in evidence.influence[b, :, c, :].nonzero()[0])
            yield Finding(
                "batch-mixed",
                "bug",
                f"Changing token {j} of sequence {c} changes output {i} of sequence {b}.",
                f"B = {B}, T = {T}",
                SourceLine.of(_first_crossing(evidence)),
            )
            return


def _first_crossing(evidence: Evidence) -> Step | None:
    """The first step at which a change of one batch entry reaches the others."""
    B, _ = evidence.inputs.sizes
    after = evidence.after(0, min(CHANGED, evidence.inputs.sizes[1] - 1))
    for step in evidence.baseline.trace:
        changed = changed_entries(evidence.baseline, after, step)
        if changed is None or not changed.any():
            continue
        axes = [axis for axis, size in enumerate(changed.shape) if size % B == 0]
        if axes and not any(_is_first_entrys(changed, axis, B) for axis in axes):
            return step
    return None


def _is_first_entrys(changed: Tensor, axis: int, B: int) -> bool:
    """Whether what changed along an axis belongs to the first batch entry: alone on it, or with heads folded in."""
    indices, size = indices_with_any(changed, axis), changed.shape[axis]
    return all(it < size // B for it in indices) or all(it % B == 0 for it in indices)


def _some(rows: list[int]) -> str:
    return ", ".join(map(str, rows[:4])) + (", …" if len(rows) > 4 else "")


@probe("heads-mixed-merge")
def merging(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Follows each token's contexts to the next projection: they must arrive in that token's row."""
    B, T = evidence.inputs.sizes
    if T < 3:
        return
    for index, attention in enumerate(evidence.attentions):
        if attention.applied_weights.shape[1] != T or len(attention.context) % B:
            continue
        entries = evidence.rows_of_entries(index)
        if entries is None:
            continue
        expected = torch.stack(
            [attention.context[lead].transpose(0, 1).reshape(T, -1) for lead in entries]
        )
        for step in steps_to_next_projection(evidence.baseline, attention.context_step)[1:]:
            value = tensor_of(step)
            if value is None or value.numel() != expected.numel() or not value.is_floating_point():
                continue
            if _rows_agree(value, expected) is False:
                yield Finding(
                    "heads-mixed-merge",
                    "bug",
                    "After the heads are put together, a token's row holds contexts of other tokens.",
                    f"B = {B}, T = {T}, {len(attention.context) // B} heads",
                    SourceLine.of(step),
                )
                return


def _rows_agree(value: Tensor, expected: Tensor) -> bool | None:
    """Whether each token's row holds what it should, in any order; None if the value has no rows of tokens."""
    B, T, _ = expected.shape
    want = expected.sort(-1).values
    candidates = []
    for t_axis, t_size in enumerate(value.shape):
        if t_size != T:
            continue
        for b_axis, b_size in enumerate(value.shape):
            if b_axis != t_axis and b_size == B:
                candidates.append(value.movedim((b_axis, t_axis), (0, 1)).reshape(B, T, -1))
        if B == 1:
            candidates.append(value.movedim(t_axis, 0).reshape(1, T, -1))
    for axis, size in enumerate(value.shape):
        if size == B * T:
            rows = value.movedim(axis, 0)
            candidates += [rows.reshape(B, T, -1), rows.reshape(T, B, -1).transpose(0, 1)]
    if B > 1 and not candidates:
        for t_axis, t_size in enumerate(value.shape):
            if t_size == T and value.shape[0] % B == 0 and t_axis > 0:
                rows = value.movedim(t_axis, 1)
                candidates.append(
                    rows.reshape(B, -1, T, *rows.shape[2:]).transpose(1, 2).reshape(B, T, -1)
                )
                candidates.append(
                    rows.reshape(-1, B, T, *rows.shape[2:])
                    .permute(1, 2, 0, *range(3, rows.dim() + 1))
                    .reshape(B, T, -1)
                )
    if not candidates:
        return None
    return any(
        it.shape == want.shape and not differing_entries(it.sort(-1).values, want).any()
        for it in candidates
    )


@probe("group-order")
def groups(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Finds which query heads share a key head: neighbours must, h // (heads per key head)."""
    for index, attention in enumerate(
        evidence.attentions if evidence.inputs.sizes[1] > CHANGED else []
    ):
        entries = evidence.rows_of_entries(index)
        if entries is None:
            continue
        H = len(entries[0])
        order = _head_order(evidence, attention, entries[0])
        for role in ("key", "value"):
            heads = getattr(attention, role)[entries[0]][order]
            labels = _labels(heads)
            if role == "key":
                yield Fact(
                    "heads",
                    f"{H}"
                    + (
                        f", in groups on {max(labels) + 1} key heads" if max(labels) + 1 < H else ""
                    ),
                )
            if max(labels) + 1 == H or labels == sorted(labels):
                continue
            way = steps_from_projection(evidence.baseline, getattr(attention, f"{role}_source"))
            yield Finding(
                "group-order",
                "bug",
                f"Query heads 0 … {H - 1} read {role} heads {', '.join(map(str, labels))}; neighbours should share: "
                f"{', '.join(str(h * (max(labels) + 1) // H) for h in range(H))}.",
                f"{H} heads on {max(labels) + 1}",
                SourceLine.of(_repeating(way) or attention.scores_step),
            )
            return
        return


def _labels(heads: Tensor) -> list[int]:
    """A number for each head, the same for equal ones, in order of appearance."""
    found: list[Tensor] = []
    labels = []
    for head in heads:
        same = next(
            (n for n, it in enumerate(found) if not differing_entries(it, head).any()), None
        )
        labels.append(len(found) if same is None else same)
        if same is None:
            found.append(head)
    return labels


def _head_order(evidence: Evidence, attention: RecordedAttention, lead: Tensor) -> Tensor:
    """The heads in the order in which their contexts stand in a token's row; as they are if that cannot be told."""
    way = steps_to_next_projection(evidence.baseline, attention.context_step)
    row = None if len(way) < 2 else tensor_of(way[-1])
    if row is None or row.numel() != attention.context.numel():
        return torch.arange(len(lead))
    numbers = row.flatten()  # of the last token, for in the first one's heads of a group are alike
    places = torch.stack([(numbers - attention.context[l, -1, 0]).abs().argmin() for l in lead])
    return places.argsort()


def _repeating(way: list[Step]) -> Step | None:
    for operation in (
        "repeat",
        "repeat_interleave",
        "tile",
        "expand",
        "cat",
        "stack",
        "getitem",
        "index_select",
    ):
        found = next((it for it in reversed(way) if it.operation == operation), None)
        if found is not None:
            return found
    return None


KEY_NAMES = frozenset(
    (
        "key",
        "keys",
        "k",
        "wk",
        "w_k",
        "k_proj",
        "to_k",
        "w_key",
        "wkey",
        "key_proj",
        "k_linear",
        "linear_k",
        "xk",
        "key_layer",
    )
)
VALUE_NAMES = frozenset(
    (
        "value",
        "values",
        "v",
        "wv",
        "w_v",
        "v_proj",
        "to_v",
        "w_value",
        "wvalue",
        "value_proj",
        "v_linear",
        "linear_v",
        "xv",
        "value_layer",
    )
)


@probe("keys-values-swapped")
def roles(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Compares what the tensors in the two products are called with what they do."""
    for attention in evidence.attentions:
        key_way, value_way = (
            steps_from_projection(evidence.baseline, it)
            for it in (attention.key_source, attention.value_source)
        )
        of_key, of_value = (
            _called(key_way, attention.key_source),
            _called(value_way, attention.value_source),
        )
        made_key, made_value = (_words(parameter_names(way[:1])) for way in (key_way, value_way))
        crossed = made_key & VALUE_NAMES and made_value & KEY_NAMES and made_key != made_value
        if crossed or of_key in VALUE_NAMES or of_value in KEY_NAMES:
            wrong = attention.context_step if of_value in KEY_NAMES else attention.scores_step
            at = key_way[0] if crossed and of_key not in VALUE_NAMES else wrong
            yield Finding(
                "keys-values-swapped",
                "bug",
                f"Queries are multiplied by {of_key!r}"
                + (f", made by {parameter_names(key_way[:1])[0]}" if crossed else "")
                + f", and the weights by {of_value!r}.",
                "",
                SourceLine.of(at),
            )
            return


def _called(way: list[Step], source: Source) -> str:
    """The last variable that a tensor was in on its way to the product."""
    names = [it.name for it in way if "·" not in it.name]
    named = [it for it in names if {it.lower()} & (KEY_NAMES | VALUE_NAMES)]
    return (named or names or [source.name])[-1].lower()


def _words(names: list[str]) -> set[str]:
    """The parts of dotted names."""
    return {part for name in names for part in name.lower().split(".")} - {"weight", "bias"}
