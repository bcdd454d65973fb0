"""Probe: the weights of a linear attention, which forms none of them, sum to 1 if it divides by their sum."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor, nn

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.projection_names import letters_of, own_name, role_of
from heedful.conformance.recording.dataflow import (
    CONVOLUTIONS,
    DIVISIONS,
    PRODUCTS,
    SCALINGS,
    parameter_names,
    steps_from_argument,
    steps_from_tokens,
)
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.observation import tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

PROJECTIONS = (nn.Linear, nn.Conv1d, nn.Conv2d)
SUMS: tuple[str, ...] = ("cumsum", "sum", *PRODUCTS)
TOLERANCE = 1e-3  # of a factor, for an ε in a denominator
NORMALIZER: re.Pattern[str] = re.compile(r"inv|denom|normali[sz]er|recip|sum|^z$", re.IGNORECASE)
"""What the name of a factor says by which a context is normalized."""


@probe("rows-not-normalised")
def linear_normalizer(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Add one vector to all values: with weights that sum to 1, it is added to all rows of the context, too."""
    module = evidence.subject.module
    weighted = any(it.fused or it.softmax_step is not None for it in evidence.attentions)
    if weighted or module is None:
        return
    for name, layer in module.named_modules():
        rows = _value_rows(name, layer) if _projects_tokens(evidence, name) else None
        vector = None if rows is None else _vector_for(layer, rows)
        added = {} if vector is None else _added_to_steps(evidence, name, vector)
        normalized = _normalized_context(evidence, added)
        if vector is None or normalized is None:
            continue
        context, place = normalized
        B, T = evidence.inputs.sizes
        if evidence.subject.convention.is_image and T not in context.shape:  # of patches
            T = context.shape[-2]
        equal = _has_equal_rows(added[context.index], T)
        factor = _factor(added[context.index], vector, B, T) if equal else 1.0
        if not equal or abs(factor - 1) > TOLERANCE:
            how = (
                f"once to each row of the context, but {factor:.3g} times"
                if equal
                else "to all rows of the context"
            )
            yield Finding(
                "rows-not-normalised",
                "bug",
                f"A vector that is added to all values is not added {how}, though a factor without values normalizes "
                "them.",
                "",
                SourceLine.of(place),
                "Divide by the sum of the query's weights: the query times the sum of the keys that it sees.",
            )
            return


def _factor(added: Tensor, vector: Tensor, B: int, T: int) -> float:
    """Return how many times a vector was added to most of B · T rows.

    It is 1 also if the rows have other features than the vector, or have them in another order.
    """
    values = vector[vector != 0]
    axis = next((axis for axis, size in enumerate(added.shape) if size == T), None)
    if axis is None or added.numel() != B * T * len(values):
        return 1.0
    rows = added.movedim(axis, 0).flatten(1)
    factors = rows.median(0).values.view(B, -1)[0] / values
    factor = factors.median()
    in_order = (factors - factor).abs() < TOLERANCE
    return float(factor) if in_order.double().mean() > 0.5 and factor > TOLERANCE else 1.0


def _projects_tokens(evidence: Evidence, layer: str) -> bool:
    """Check whether a layer projects the tokens, and no state of a decoder."""
    steps = evidence.baseline.trace.steps
    given = evidence.subject.convention.names
    of_tokens = {index for name in given for index in steps_from_argument(steps, name)}
    return any(f"{layer}.weight" in parameter_names([steps[it]]) for it in of_tokens)


def _value_rows(name: str, layer: nn.Module) -> slice | None:
    """Return which of a layer's features are values; None if none are, or if it is no projection."""
    letters = letters_of(own_name(name))
    if not isinstance(layer, PROJECTIONS) or len(layer.weight) == 1:  # which makes scores
        return None
    features = len(layer.weight)
    if letters.endswith("v") and features % len(letters) == 0:
        return slice(-(features // len(letters)), None)
    return slice(None) if role_of(own_name(name)) == "value" else None


def _vector_for(layer: nn.Module, rows: slice) -> Tensor:
    """Return a random vector for a layer's bias, with zeros beside the features of the values."""
    assert isinstance(layer, PROJECTIONS)
    vector = layer.weight.new_zeros(len(layer.weight))
    generator = torch.Generator().manual_seed(1)
    vector[rows] = torch.randn(vector[rows].shape, generator=generator).to(vector)
    return vector.detach()


def _added_to_steps(evidence: Evidence, name: str, vector: Tensor) -> dict[int, Tensor]:
    """Add one vector to all values, and return what that adds to the results of steps, by their indices."""
    subject = evidence.subject.fresh()
    assert subject.module is not None
    layer = subject.module.get_submodule(name)
    assert isinstance(layer, PROJECTIONS)
    bias = layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias
    layer.bias = nn.Parameter(bias.detach() + vector.to(bias))
    before, after = evidence.baseline.trace.steps, subject.record(evidence.inputs).trace.steps
    if len(before) != len(after):
        return {}
    results = ((step.index, tensor_of(step), tensor_of(after[step.index])) for step in before)
    return {
        index: new - old
        for index, old, new in results
        if old is not None and new is not None and old.shape == new.shape
        if differing_entries(old, new).any()
    }


def _normalized_context(evidence: Evidence, of_values: Collection[int]) -> tuple[Step, Step] | None:
    """Return the step that normalizes a context made of values, and the first sum that its normalizer is made by.

    If the queries multiply what a step normalizes, return their product, and that step.
    """
    steps = evidence.baseline.trace.steps
    of_tokens = steps_from_tokens(steps)
    for step in (steps[index] for index in of_values):
        made_by = [source.step for source in step.inputs if source.step is not None]
        others = [it for it in made_by if it in of_tokens and it not in of_values]
        divides = step.operation in DIVISIONS and made_by[-1:] == others
        factors = [it for it in others if NORMALIZER.search(steps[it].name)]
        normalizer = others if divides else factors if step.operation in (*PRODUCTS, "mul") else []
        if normalizer and (sums := _first_sum(evidence, normalizer[-1], of_tokens)) is not None:
            context = _rescaled(steps, step)
            weighted = _weighted(steps, context, of_tokens.difference(of_values))
            return (context, sums) if weighted is None else (weighted, step)
    return None


def _rescaled(steps: Sequence[Step], step: Step) -> Step:
    """Return the last of the steps that only multiply a step's result by a number, or the step itself.

    Values that were divided by their number before the sum are multiplied by it again behind it.
    """
    for later in steps[step.index + 1 :]:
        from_step = [it.step for it in later.inputs] == [step.index]
        if from_step and later.operation in SCALINGS and later.shape == step.shape:
            step = later
    return step


def _weighted(steps: Sequence[Step], step: Step, factors: Collection[int]) -> Step | None:
    """Return the product of a step's result, sums of keys and values, and the queries; None if there is none.

    Queries of which some are negative do not weight the sums: they may be the query of a lambda layer.

    Args:
        steps: Those of the run.
        step: One of them, which divides such sums.
        factors: The indices of the steps that are made of tokens, but of no values.
    """
    for later in steps[step.index + 1 :]:
        others = [it.step for it in later.inputs if it.step != step.index]
        if later.operation in PRODUCTS and len(others) < len(later.inputs) and others:
            queries = [steps[it] for it in others if it is not None and it in factors]
            positive = all(_is_positive(tensor_of(it)) for it in queries)
            return later if len(queries) == len(others) and positive else None
    return None


def _is_positive(tensor: Tensor | None) -> bool:
    return tensor is not None and bool((tensor >= 0).all())


def _first_sum(evidence: Evidence, normalizer: int, of_tokens: set[int]) -> Step | None:
    """Return the first step that sums tokens up on the way to a normalizer."""
    steps, pending, sums = evidence.baseline.trace.steps, [normalizer], list[Step]()
    while pending:
        step = steps[pending.pop()]
        of_weights = any(it.kind in ("parameter", "buffer") for it in step.inputs)
        if step.operation in SUMS and not of_weights:
            sums.append(step)
        if step.operation not in ("linear", *CONVOLUTIONS):
            pending += [
                it.step for it in step.inputs if it.step in of_tokens and it.step is not None
            ]
    T = evidence.inputs.sizes[1]
    over_tokens = [step for step in sums if T not in step.shape]
    return min(over_tokens or sums, key=lambda step: step.index, default=None)


def _has_equal_rows(added: Tensor, T: int) -> bool:
    """Check whether most rows of the tokens are equal; True also if no axis is clearly that of the tokens.

    A token with no visible key, or with weights of 0, has a row of its own, perhaps in a single head.
    """
    axes = [axis for axis, size in enumerate(added.shape) if size == T]
    if len(axes) != 1:
        return True
    rows = added.movedim(axes[0], 0)
    near = [torch.isclose(rows, row, rtol=1e-3, atol=1e-5).all(-1).sum(0) for row in rows]
    are_equal = torch.stack(near).amax(0) > T // 2
    return bool(are_equal.double().mean() > 0.5)
