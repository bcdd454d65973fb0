"""Probe: a residual connection adds the block's input: neither its own result, nor the values of cross-attention."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from heedful.conformance.calling import names
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.forgotten_siblings import forgotten_siblings
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.weighting_causes import ADDITIONS
from heedful.conformance.recording.dataflow import ancestors
from heedful.conformance.recording.source import SourceLine, parsed_file
from heedful.conformance.reporting.finding import ANY_CALL, Fact, Finding
from heedful.observation import Source, Step


@probe("context-wrong")
def residual_operands(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Search for sums of a layer's result with itself, and for sums of an attention's result with its values alone."""
    steps = evidence.baseline.trace.steps
    sums = [step for step in steps if step.operation in ADDITIONS and len(_operands(step)) == 2]
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


def _operands(step: Step) -> list[Source]:
    return [it for it in step.arguments if isinstance(it, Source)]


def _is_doubled(steps: tuple[Step, ...], step: Step) -> bool:
    """Check whether a sum, written as that of a variable with itself, adds what a layer has made to itself."""
    one, other = _operands(step)
    if one != other or one.step is None:
        return False
    behind = (steps[it] for it in _behind(steps, one))
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
    for values, result in (_operands(step), _operands(step)[::-1]):
        behind = _behind(steps, result)
        inputs, given = _inputs_of(steps, values), _inputs_of(steps, result)
        of_attention = given & {*names.QUERIES} and given & {*names.KEYS} and set() < inputs < given
        if of_attention and inputs <= {*names.VALUES} and _behind(steps, values) <= behind:
            return True
    return False


def _inputs_of(steps: tuple[Step, ...], source: Source) -> set[str]:
    """Return the names of the arguments of the call that a tensor is, or is computed from."""
    if source.kind == "input":
        return {source.name}
    behind = _behind(steps, source)
    return {it.name for index in behind for it in steps[index].inputs if it.kind == "input"}


def _behind(steps: tuple[Step, ...], source: Source) -> set[int]:
    """Return the indices of the steps from which a tensor is computed."""
    return set() if source.step is None else ancestors(steps, steps[source.step])
