"""The line that gives scores a wrong scale: where it acts, or where its number is defined."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence

from heedful.conformance.calling import names
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.fused import FUSED, fused_arguments
from heedful.conformance.recording.assignments import last_assignment
from heedful.conformance.recording.call_sites import call_relying_on_default, value_handed_to
from heedful.conformance.recording.dataflow import (
    SCALINGS,
)
from heedful.conformance.recording.definitions import attribute_definition
from heedful.conformance.recording.observation import Observation, tensor_of, value_of
from heedful.conformance.recording.source import SourceLine, tree_of
from heedful.observation import Source, Step

TOLERANCE = 1e-3
"""The relative error of a scale."""
SCALES: re.Pattern[str] = re.compile(r"scal|temper|denom|norm_fac")
"""Names of attributes that hold the scale, or what the scores are divided by."""
UNPACKING: re.Pattern[str] = re.compile(r"\(?\w+,[\w\s,*]*\)? = [\w.]+\.(shape|size\(\))")
"""A statement that unpacks a shape."""
SIZE: re.Pattern[str] = re.compile(r"\w+ = [\w.]+\.(shape\[-?\d\]|size\(-?\d\))$")
"""A statement that takes one size of a tensor."""
OF_FEATURES: re.Pattern[str] = re.compile(r"^[dcek]$|dk|d_|_d|dim|emb|hid|feat|chan|size|scal")
"""What is in the name of a number of features, in lower case."""


def scaling_line(
    evidence: Evidence,
    observation: Observation,
    attention: RecordedAttention,
    steps: Sequence[Step],
    head_size: int,
) -> SourceLine | None:
    """Return the line that scales queries, keys or scores, or the one that defines the number.

    If several steps scale queries and keys, the last one does so once too often.

    Args:
        evidence: The runs.
        observation: The run that has the attention.
        attention: The attention.
        steps: Those that multiply queries or keys before their product.
        head_size: The number of features by which queries and keys are compared.
    """
    module = evidence.subject.module
    if steps and attention.fused and fused_arguments(attention.scores_step)["scale"] is not None:
        handed = value_handed_to(module, attention.scores_step, SCALES)
        return SourceLine.of(attention.scores_step) if handed is None else handed.place
    if len(steps) > 1:
        return SourceLine.of(steps[-1])
    softmax = attention.softmax_step
    on_scores = [
        step
        for step in attention.chain
        if step.operation in SCALINGS
        and step is not attention.scores_step
        and (softmax is None or step.index < softmax.index)
    ]
    step = [*steps, *on_scores, attention.scores_step][0]
    handed = value_handed_to(module, step, SCALES)
    if handed is not None:
        right = not handed.attribute or _is_right(evidence, handed.attribute, head_size)
        defined = None if right else attribute_definition(module, handed.attribute)
        return defined or handed.place
    return (
        _definition_of_factor(evidence, observation, step, head_size)
        or _assignment_of_factor(evidence, observation, step, head_size)
        or call_relying_on_default(step, SCALES)
        or SourceLine.of(step)
    )


def factor_of(observation: Observation, step: Step) -> float | None:
    """Return the number by which a step multiplies its one tensor of several entries; None for other steps."""
    arguments = [
        value_of(observation, argument)
        for argument in step.arguments
        if isinstance(argument, Source)
    ]
    tensors = [tensor for tensor in arguments if tensor is not None and tensor.numel() > 1]
    result = tensor_of(step)
    if len(tensors) != 1 or result is None or result.numel() != tensors[0].numel():
        return None
    norm = tensors[0].norm()
    return (result.norm() / norm).item() if norm > 0 else None


def _definition_of_factor(
    evidence: Evidence, observation: Observation, step: Step, head_size: int
) -> SourceLine | None:
    """Return the line that defines the scale, or the wrong `self.head_dim`, that a step reads.

    The scale is called `self.…scal…`, or it is the number that the step multiplies or divides by.
    """
    if step.operation == FUSED and fused_arguments(step)["scale"] is None:
        return None
    for node in ast.walk(tree_of(step.source)):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                path = f"{step.module}.{name}" if step.module else name
                stale = name in names.HEAD_SIZES and _attribute(evidence, path) != head_size
                kept = SCALES.search(name.lower()) or _scales_by(evidence, observation, step, path)
                if stale or (kept and not _is_right(evidence, path, head_size)):
                    return attribute_definition(evidence.subject.module, path)
    return None


def _assignment_of_factor(
    evidence: Evidence, observation: Observation, step: Step, head_size: int
) -> SourceLine | None:
    """Return the line that gives a wrong number to the local variable that a step multiplies or divides by.

    A variable that holds the head size is right, and what the step does with it is wrong. So is one of several that a
    shape is unpacked into, or one size that is not called a number of features: it is the size of another axis, and no
    scale.
    """
    numbers = [it for it in step.arguments if isinstance(it, int | float) and it > 0]
    scales = step.operation in SCALINGS and len(numbers) == 1
    for node in ast.walk(tree_of(step.source)) if scales else ():
        match node:
            case ast.BinOp(op=ast.Mult() | ast.Div(), left=left, right=right):
                pass
            case _:
                continue
        for operand in (right, left):
            name, power = _variable_with_power(operand)
            assigned = name and last_assignment(evidence.subject.callee, step, name)
            made = [it for it in observation.trace if assigned and it.line == assigned.line]
            unpacked = assigned and (
                UNPACKING.match(assigned.source)
                or (SIZE.match(assigned.source) and not OF_FEATURES.search(name.lower()))
            )
            if (
                assigned
                and not unpacked
                and not made
                and not math.isclose(numbers[0] ** (1 / power), head_size)
            ):
                return assigned
    return None


def _variable_with_power(operand: ast.expr) -> tuple[str, float]:
    """Return the variable that an operand consists of and the power that it is raised to; "" if it is no such one."""
    match operand:
        case ast.Name(id=name):
            return name, 1.0
        case ast.Call(
            func=ast.Name(id="sqrt") | ast.Attribute(attr="sqrt"), args=[ast.Name(id=name)]
        ):
            return name, 0.5
        case ast.BinOp(
            left=ast.Name(id=name), op=ast.Pow(), right=ast.Constant(value=float(power))
        ):
            return name, power
        case ast.BinOp(
            left=ast.Name(id=name),
            op=ast.Pow(),
            right=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=float(power))),
        ):
            return name, -power
    return "", 1.0


def _is_right(evidence: Evidence, path: str, head_size: int) -> bool:
    """Check whether a scale is defined as 1/√head_dim, or a divisor as √head_dim, so that the step is wrong."""
    value, usual = _attribute(evidence, path), head_size**0.5
    usual = 1 / usual if "scal" in path.rpartition(".")[2].lower() else usual
    return isinstance(value, float) and math.isclose(value, usual)


def _scales_by(evidence: Evidence, observation: Observation, step: Step, path: str) -> bool:
    """Check whether an attribute is the number that a step multiplies or divides its tensor by."""
    value = _attribute(evidence, path)
    factor = factor_of(observation, step) if step.operation in SCALINGS else None
    if factor is None or not isinstance(value, float) or value <= 0:
        return False
    return any(math.isclose(factor, it, rel_tol=TOLERANCE) for it in (value, 1 / value))


def _attribute(evidence: Evidence, path: str) -> object:
    """Return an attribute of a module within the subject, such as "attn.scaling"."""
    owner, _, name = path.rpartition(".")
    module = evidence.subject.module
    return None if module is None else getattr(module.get_submodule(owner), name, None)
