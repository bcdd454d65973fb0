"""Probe: a residual connection adds the block's input: neither its own result, nor the values of cross-attention."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from heedful.conformance.calling import names
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.forgotten_siblings import forgotten_siblings
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.weighting_causes import ADDITIONS
from heedful.conformance.recording.dataflow import arguments_behind, operands_of, steps_behind
from heedful.conformance.recording.source import SourceLine, parsed_file
from heedful.conformance.reporting.finding import ANY_CALL, Fact, Finding
from heedful.observation import Step


@probe("context-wrong")
def residual_operands(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Search for sums of a layer's result with itself, and for sums of an attention's result with its values alone."""
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
    of_values = (it for it in sums if _adds_values(steps, it))
    step = next(of_values, None)
    if step is not None:
        yield _finding(
            "This residual connection adds the values to the attention's result, whose rows belong to the queries: row "
            "i gets the value at position i, and queries of another number than the values do not fit.",
            step,
            "Add the queries, or what they are projected from.",
        )


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
