"""Probe: a shift of relative scores moves each row so that its entries belong to distances, and mixes no rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby, product

from torch import Tensor

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import ancestors
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.observation import Observation, tensor_of, value_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

JOINS = ("cat", "concat", "concatenate")
SHIFTS: re.Pattern[str] = re.compile(r"shift|skew|rel(ative)?_(\w+_)?to_abs", re.IGNORECASE)
"""Names of functions that turn scores by distance into scores by key (Dai et al. 2019; Huang et al. 2018)."""


@probe("relative-shift-wrong")
def relative_shift(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Follow the entries through a function that shifts relative scores: each must stay in its row, by distance."""
    _, T = evidence.inputs.sizes
    for steps in _calls(evidence.baseline):
        before, after = _operands(evidence.baseline, steps)
        rows = None if before is None or after is None else _rows(before, after, T)
        if rows is None:
            continue
        later_have_none = (
            not rows[1].triu(1).any()
        )  # 0 for later keys, which a mask may hide or not
        proof = _proof(*rows, causal=evidence.is_causal or later_have_none)
        if proof:
            function = steps[0].function.rpartition(".")[2]
            made = _numbering(evidence, steps, *rows) or _symmetric(evidence, steps, rows[0])
            line = SourceLine.of(made or _reshaping(steps))
            subject = evidence.subject  # a mask of queries and keys alone is the caller's to make
            of_caller = subject.attention_mask is not None and subject.padding is None
            by_mask = ("skew" in function.lower() or of_caller) and _needs_causal_mask(
                evidence, *rows
            )
            level = "suspicious" if by_mask else "bug"
            proof += (
                " Earlier keys are right: the caller has to hide later ones." if by_mask else ""
            )
            yield Finding("relative-shift-wrong", level, f"{function}: {proof}", f"T = {T}", line)
            return


def _calls(observation: Observation) -> Iterator[list[Step]]:
    """Yield the steps of each call of a function that shifts relative scores."""
    for function, steps in groupby(observation.trace, key=lambda step: step.function):
        if SHIFTS.search(function.rpartition(".")[2]):
            yield list(steps)


def _operands(
    observation: Observation, steps: Sequence[Step]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the scores that a call shifts, the largest tensor that it reads from outside, and its result."""
    own = {step.index for step in steps}
    read = (source for step in steps for source in step.inputs if source.step not in own)
    tensors = [tensor for source in read if (tensor := value_of(observation, source)) is not None]
    return max(tensors, key=Tensor.numel, default=None), tensor_of(steps[-1])


def _rows(before: Tensor, after: Tensor, T: int) -> tuple[Tensor, Tensor] | None:
    """Return both tensors as (N, T, …), one row for each query; None if their axes are not clear."""
    axes = [axis for axis, size in enumerate(after.shape) if size == T]
    if before.dim() != after.dim() or len(axes) != 2 or before.shape[axes[0]] != T:
        return None
    if before.shape[axes[1]] < T:
        return None
    x, y = (tensor.movedim(axes, (-2, -1)).flatten(0, -3) for tensor in (before, after))
    return (x, y) if len(x) == len(y) else None


def _proof(x: Tensor, y: Tensor, *, causal: bool) -> str:
    """Describe an entry of the result that is in a wrong row or at a wrong distance; return "" if none is.

    Equal columns, as those of distances that are treated alike, are all taken for the one that fits. Only scores with
    a column for each distance to an earlier or later key are meant to tell the two.
    """
    found: dict[int, tuple[set[int], int]] = {}
    T = y.shape[-1]
    for i, j in product(range(T), repeat=2):
        if causal and j > i:
            continue
        columns = set((x[:, i] == y[:, i, j, None]).all(0).nonzero().flatten().tolist())
        if not columns:
            return f"the score of query {i} and key {j} is none of the scores of this query."
        known, other = found.setdefault(j - i, (columns, i))
        if known.isdisjoint(columns):
            return (
                f"queries {other} and {i} take the score of one distance from columns "
                f"{min(known)} and {min(columns)}."
            )
        found[j - i] = known & columns, other
    if (
        not causal
        and x.shape[-1] == 2 * T - 1
        and _are_equal(*(x[..., min(found[distance][0])] for distance in (1, -1)))
    ):
        return "the keys one token before a query and one token after it have the same score."
    return ""


def _needs_causal_mask(evidence: Evidence, x: Tensor, y: Tensor) -> bool:
    """Check whether there are scores of earlier keys alone, all of them right, beside a mask argument.

    Skewing is made for that (Huang et al. 2019): its scores of later keys mean nothing.
    """
    takes_mask = evidence.subject.padding or evidence.subject.attention_mask
    only_earlier = x.shape[-1] == y.shape[-1]
    return takes_mask is not None and only_earlier and not _proof(x, y, causal=True)


def _are_equal(a: Tensor, b: Tensor) -> bool:
    return not differing_entries(a, b).any()


def _numbering(evidence: Evidence, steps: Sequence[Step], x: Tensor, y: Tensor) -> Step | None:
    """Return the step that numbers the distances, if there are too few of them and those of earlier keys are right."""
    trace, T = evidence.baseline.trace.steps, y.shape[-1]
    if x.shape[-1] >= 2 * T - 1 or _proof(x, y, causal=True):
        return None
    numbered = (trace[index] for index in sorted(ancestors(trace, steps[0])))
    return next(
        (it for it in numbered if it.operation == "arange" and it.shape == x.shape[-1:]), None
    )


def _symmetric(evidence: Evidence, steps: Sequence[Step], x: Tensor) -> Step | None:
    """Return the step from which on the rows of earlier and later keys are equal, if those of the scores are."""
    trace, distances = evidence.baseline.trace.steps, x.shape[-1]
    behind = ancestors(trace, steps[0]) if _are_equal(x, x.flip(-1)) else set[int]()
    found = None
    for index in sorted(behind, reverse=True):
        value = tensor_of(trace[index])
        axes = [] if value is None else [a for a, n in enumerate(value.shape) if n == distances]
        if value is None or not axes:
            continue
        if not _are_equal(value, value.flip(axes[0])):
            break
        found = trace[index]
    return found and _sine_of_later_keys(trace, found)


def _sine_of_later_keys(steps: Sequence[Step], joining: Step) -> Step:
    """Return the sine in the second one of two halves that a step joins, whose sign differs; else the step itself."""
    halves = [it.step for it in joining.inputs] if joining.operation in JOINS else []
    behind = [set[int]() if it is None else ancestors(steps, steps[it]) for it in halves]
    of_second = behind[-1] - behind[0] if behind else set[int]()
    sines = [index for index in of_second if steps[index].operation == "sin"]
    return steps[max(sines)] if sines else joining


def _reshaping(steps: Sequence[Step]) -> Step:
    """Return the step that reads the rows at another length, which shifts them, or else the last one."""
    reshaping = (step for step in steps if step.operation in ("view", "reshape", "as_strided"))
    return next(reshaping, steps[-1])
