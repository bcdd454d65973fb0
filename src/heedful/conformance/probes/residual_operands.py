"""Probe: a residual connection adds its sublayer's input: not its own result, values, or an earlier input."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from heedful.conformance.calling import names
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.fused import FUSED, MULTI_HEAD
from heedful.conformance.probes.forgotten_siblings import forgotten_siblings
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.weighting_causes import ADDITIONS
from heedful.conformance.recording.dataflow import (
    DIFFERENCES,
    NORMS,
    SOFTMAXES,
    ancestors,
    arguments_behind,
    behind_views,
    is_layer,
    operands_of,
    steps_behind,
)
from heedful.conformance.recording.source import SourceLine, parsed_file
from heedful.conformance.reporting.finding import ANY_CALL, Fact, Finding
from heedful.observation import Step

ATTENDING: tuple[str, ...] = (*SOFTMAXES, FUSED, MULTI_HEAD)


@probe("context-wrong")
def residual_operands(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Search for sums of a result with itself, and of an attention's result with its values or an earlier input."""
    steps = evidence.baseline.trace.steps
    sums = [step for step in steps if step.operation in ADDITIONS and len(operands_of(step)) == 2]
    doubled = next((it for it in sums if _is_doubled(steps, it)), None)
    siblings = (it for it in forgotten_siblings.ask(evidence) if isinstance(it, Finding))
    if doubled is not None and next(siblings, None) is None:
        yield _finding(
            "This sum adds a result to itself: it doubles it, and the block's input is lost.",
            doubled,
            "Keep the input, and add that: residual = x; x = residual + attention(x).",
        )
        return
    stale = ((it, before) for it in sums if (before := _sum_passed_over(steps, it)) is not None)
    for step, before in stale:
        yield _finding(
            f"This residual connection adds the input of {before.source.strip()!r}, not its sum: what the attention "
            "has found reaches the output through the next sublayer alone.",
            step,
            "Add what the sublayer is given, or what its norm is given.",
        )
        return
    of_values = (it for it in sums if _adds_values(steps, it))
    step = next(of_values, None)
    if step is not None:
        yield _finding(
            "This residual connection adds the values to the attention's result, whose rows belong to the queries: row "
            "i gets the value at position i, and queries of another number than the values do not fit.",
            step,
            "Add the queries, or what they are projected from.",
        )


def _sum_passed_over(steps: tuple[Step, ...], step: Step) -> Step | None:
    """Return the sum of a block's input and an attention's result that a later residual connection leaves out.

    The later one adds the same input to what layers make of that sum, which nothing else reads.
    """
    for kept, made in (operands_of(step), operands_of(step)[::-1]):
        residual, behind = behind_views(steps, kept), steps_behind(steps, made)
        start = -1 if residual.step is None else residual.step
        beside = [steps[it] for it in behind if it > start and _is_beside(steps[it], step)]
        inner = [it for it in beside if it.operation in ADDITIONS and len(operands_of(it)) == 2]
        if len(inner) != 1 or {inner[0].operation, step.operation} & {*DIFFERENCES}:
            continue
        first = inner[0]
        others = [it for it in operands_of(first) if behind_views(steps, it) != residual]
        by_attention = len(others) == 1 and any(
            it > start and steps[it].operation in ATTENDING for it in steps_behind(steps, others[0])
        )
        between = (steps[it] for it in behind - ancestors(steps, first))
        if by_attention and any(map(is_layer, between)) and _is_lost(steps, first, behind):
            return first
    return None


def _is_beside(first: Step, second: Step) -> bool:
    """Check whether two steps are in the same function of the same module."""
    places = [(it.module, it.file, it.function) for it in (first, second)]
    return places[0] == places[1]


def _is_lost(steps: tuple[Step, ...], first: Step, behind: set[int]) -> bool:
    """Check whether a sum, and the norm of it, reach the end through some steps alone."""
    norms = {it.index for it in steps if it.operation in NORMS and _reads(it, {first.index})}
    return all(it.index in behind for it in steps if _reads(it, {first.index, *norms}))


def _reads(step: Step, indices: set[int]) -> bool:
    return any(source.step in indices for source in step.inputs)


def _finding(proof: str, step: Step, remedy: str) -> Finding:
    return Finding("context-wrong", "bug", proof, ANY_CALL, SourceLine.of(step), remedy)


def _is_doubled(steps: tuple[Step, ...], step: Step) -> bool:
    """Check whether a sum, written as that of a variable with itself, adds what a layer has made to itself."""
    one, other = operands_of(step)
    if one != other or one.step is None:
        return False
    behind = (steps[it] for it in steps_behind(steps, one))
    if not any(source.kind == "parameter" for it in behind for source in it.inputs):
        return False
    source = parsed_file(step.file or "")
    for node in () if source is None else source.nodes:
        match node:
            case ast.BinOp(left=ast.Name(id=left), op=ast.Add(), right=ast.Name(id=right)) if (
                left == right and node.lineno == step.line
            ):
                return True
    return False


def _adds_values(steps: tuple[Step, ...], step: Step) -> bool:
    """Check whether one operand of a sum is the values, and the other one is made of these, queries and keys."""
    for values, result in (operands_of(step), operands_of(step)[::-1]):
        behind = steps_behind(steps, result)
        inputs, given = arguments_behind(steps, values), arguments_behind(steps, result)
        of_attention = given & {*names.QUERIES} and given & {*names.KEYS} and set() < inputs < given
        if of_attention and inputs <= {*names.VALUES} and steps_behind(steps, values) <= behind:
            return True
    return False
