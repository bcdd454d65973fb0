"""Probe: what is summed over the tokens, or over the edges of a graph, is weighted by a softmax over the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.conformance.evidence.attention_search import products_over_tokens
from heedful.conformance.evidence.axes import Product
from heedful.conformance.evidence.chain import (
    DIVISIONS,
    EXPONENTIALS,
)
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.call_sites import call_line
from heedful.conformance.recording.dataflow import (
    MULTIPLICATIONS,
    NORMS,
    PRODUCTS,
    SOFTMAXES,
    VIEWS,
    ancestors,
)
from heedful.conformance.recording.observation import Observation, tensor_of, value_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.recording.target_source import prose_about
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step
from heedful.shapes import times

TOLERANCE = 1e-6
GROUPING: tuple[str, ...] = (
    *("index_add", "index_add_", "scatter_add", "scatter_add_"),
    *("scatter_reduce", "scatter_reduce_", "index_reduce", "index_reduce_"),
)
KERNELS: tuple[str, ...] = ("feature map", "feature_map", "kernel", "hedgehog", "cluster", "assign")
"""What code says in words if a softmax over features makes no weights of tokens."""


@probe("softmax-wrong-dim", "attention-ignored")
def gathered_weights(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Sum the weights of what is gathered from all tokens, or from the neighbors in a graph: the sum must be 1."""
    finding = _over_tokens(evidence) or _over_groups(evidence)
    if finding is not None:
        yield finding


# --- over the tokens ---------------------------------------------------------------------------------


def _over_tokens(evidence: Evidence) -> Finding | None:
    """Return a finding if tokens are gathered by a softmax over features, and given out by another one.

    Each token is then weighted in proportion to no other one. Softmaxes over features make up a kernel where their
    products are divided by a sum, or normalized, and where the code speaks of kernels.
    """
    observation = evidence.baseline
    prose = prose_about(evidence.subject.callee)
    if any(words in prose for words in KERNELS):
        return None
    for product in products_over_tokens(observation):
        for side in (0, 1):
            softmax = _softmax_behind(observation, product.sources[side])
            if softmax is None or not _sums_to_1_elsewhere(product, side):
                continue
            if not _is_given_out(observation, product, softmax) or _is_divided(
                observation, product
            ):
                continue
            return Finding(
                "softmax-wrong-dim",
                "bug",
                f"The weights {times(softmax.shape)} sum to 1 over features, but the product that they weight sums "
                "over the tokens.",
                f"T = {observation.inputs.sizes[1]}",
                SourceLine.of(softmax),
                "Take this softmax over the tokens.",
            )
    return None


def _softmax_behind(observation: Observation, source: Source) -> Step | None:
    """Return the softmax that an operand rearranges; None if it is something else."""
    index = source.step
    while index is not None:
        step = observation.trace[index]
        if step.operation in SOFTMAXES:
            return step
        index = step.inputs[0].step if step.operation in VIEWS and step.inputs else None
    return None


def _sums_to_1_elsewhere(product: Product, side: int) -> bool:
    """Check whether an operand sums to 1 along an axis that the product keeps, and not along the one it sums over."""
    operand, letters = (product.left, product.right)[side], product.letters[side]
    kept = [axis for axis, letter in enumerate(letters) if letter in product.own(side)]
    summed = [axis for axis, letter in enumerate(letters) if letter in product.summed]
    return any(are_ones(operand.sum(axis)) for axis in kept if operand.shape[axis] > 1) and not (
        are_ones(operand.sum(summed))
    )


def are_ones(sums: Tensor) -> bool:
    return torch.allclose(sums, torch.ones_like(sums), atol=TOLERANCE)


def _is_given_out(observation: Observation, product: Product, softmax: Step) -> bool:
    """Check whether a later product takes the result of a product, and weights it by another softmax."""
    steps = observation.trace.steps
    for step in steps[product.step.index + 1 :]:
        if step.operation in PRODUCTS and len(step.inputs) == 2:
            behind = [
                set() if it.step is None else ancestors(steps, steps[it.step]) for it in step.inputs
            ]
            softmaxes = [_softmax_behind(observation, it) for it in step.inputs]
            for ours, weights in ((behind[0], softmaxes[1]), (behind[1], softmaxes[0])):
                if product.step.index in ours and weights is not None and weights is not softmax:
                    return True
    return False


def _is_divided(observation: Observation, product: Product) -> bool:
    """Check whether the result of a product is divided by another tensor, or normalized, later on."""
    steps = observation.trace.steps
    return any(
        (step.operation in NORMS or (step.operation in DIVISIONS and len(step.inputs) > 1))
        and product.step.index in ancestors(steps, step)
        for step in steps[product.step.index + 1 :]
    )


# --- over the edges of a graph -----------------------------------------------------------------------


class Grouping(NamedTuple):
    """A step that sums up what has the same index.

    Attributes:
        step: The step.
        indices: The index of each entry.
        source: Where the entries come from.
    """

    step: Step
    indices: Tensor
    source: Source


def _over_groups(evidence: Evidence) -> Finding | None:
    """Return a finding if weights sum to 1 over other groups than those of the values, or over all groups together.

    Weights that serve two sums, as those of a hypergraph into its edges and back, belong to the first one.
    """
    observation = evidence.baseline
    groupings = list(groupings_of(observation))
    judged = set[int]()
    for gathering in groupings:
        if (finding := _over_all_groups(evidence, gathering)) is not None:
            return finding
        weights = _weights(observation, gathering)
        if weights is None or weights.index in judged:
            continue
        judged.add(weights.index)
        if _are_all_equal(weights, gathering.indices):
            return Finding(
                "attention-ignored",
                "bug",
                "All entries of a group get the same weight, whatever their scores are.",
                f"{len(gathering.indices)} edges",
                SourceLine.of(_first_all_equal(evidence, weights, gathering.indices)),
                "Subtract the largest score of the group from each score, and take the exponential of the difference.",
            )
        if sum_to_1(weights, gathering.indices):
            continue
        exponentials = ancestors(observation.trace.steps, weights)
        sums = [it for it in groupings if it.step.index in exponentials]
        if not any(sum_to_1(weights, it.indices) for it in sums):
            continue
        inner = weights.function != gathering.step.function
        line = call_line(observation, evidence.subject.module, weights) if inner else None
        return Finding(
            "softmax-wrong-dim",
            "bug",
            "The weights sum to 1 over other groups than those in which the values are summed: the softmax and the sum "
            "take different indices.",
            f"{len(gathering.indices)} edges",
            line or SourceLine.of(weights),
            "Group the softmax by the index to which the values are added.",
        )
    return None


def _first_all_equal(evidence: Evidence, weights: Step, index: Tensor) -> Step:
    """Return the step from which on, up to the weights, the entries of each group are equal."""
    steps, first = evidence.baseline.trace.steps, weights
    for number in sorted(ancestors(steps, weights), reverse=True):
        value = tensor_of(steps[number])
        if value is None or not value.is_floating_point() or value.shape[:1] != index.shape[:1]:
            continue
        if not _are_all_equal(steps[number], index):
            break
        first = steps[number]
    return first


def _are_all_equal(weights: Step, index: Tensor) -> bool:
    """Check whether the weights of each group are equal, and some group has more than one.

    A single group may consist of one edge many times, in a graph that we have made up.
    """
    value, groups = tensor_of(weights), index.unique()
    if value is None or not 1 < len(groups) < len(index):
        return False
    parts = (value[index == group] for group in groups)
    return all(torch.allclose(part, part[:1].expand_as(part)) for part in parts)


def _over_all_groups(evidence: Evidence, gathering: Grouping) -> Finding | None:
    """Return a finding if one softmax over the entries of all groups weights the values of each group."""
    steps, groups = evidence.baseline.trace.steps, len(gathering.indices.unique())
    if gathering.source.step is None or groups == 1:
        return None
    factors = [steps[gathering.source.step]]
    while factors:
        step = factors.pop()
        if step.operation in (*VIEWS, *MULTIPLICATIONS, "dropout"):
            factors += [steps[it.step] for it in step.inputs if it.step is not None]
        value = tensor_of(step) if step.operation in SOFTMAXES else None
        if value is not None and len(value) == len(gathering.indices) and are_ones(value.sum(0)):
            return Finding(
                "softmax-wrong-dim",
                "bug",
                f"The weights sum to 1 over all {len(value)} entries together, but the values are summed in {groups} "
                "groups.",
                f"{len(value)} entries",
                SourceLine.of(step),
                "Take the softmax within each group: divide the exponentials by their sum in the group.",
            )
    return None


def groupings_of(observation: Observation) -> Iterator[Grouping]:
    """Yield the steps of a run that sum up what has the same index."""
    for step in observation.trace:
        if step.operation not in GROUPING:
            continue
        sources = [
            it for it in (*step.arguments, *step.keywords.values()) if isinstance(it, Source)
        ]
        values = [value_of(observation, it) for it in sources]
        indices = [it for it in values if it is not None and it.dtype == torch.int64]
        added = sources[-1]
        if len(indices) == 1 and value_of(observation, added) is not indices[0]:
            yield Grouping(step, indices[0].reshape(len(indices[0]), -1)[:, 0], added)


def _weights(observation: Observation, gathering: Grouping) -> Step | None:
    """Return the quotient of exponentials by which the entries of a grouping are multiplied; None if there is none."""
    steps = observation.trace.steps
    if gathering.source.step is None:
        return None
    behind = sorted(ancestors(steps, steps[gathering.source.step]), reverse=True)
    for step in (steps[index] for index in behind):
        of_entries = step.shape[:1] == (len(gathering.indices),)
        if not of_entries or step.operation not in DIVISIONS:
            continue
        if any(steps[it].operation in EXPONENTIALS for it in ancestors(steps, step)):
            return step
    return None


def sum_to_1(weights: Step, index: Tensor) -> bool:
    """Check whether weights sum to 1 over the entries that have the same index."""
    value = tensor_of(weights)
    if value is None or len(value) != len(index):
        return False
    flat = value.reshape(len(value), -1)
    sums = flat.new_zeros(int(index.max()) + 1, flat.shape[1]).index_add(0, index, flat)
    return are_ones(sums[index.unique()])
