"""Probe: the products of queries and keys are multiplied by 1/√head_dim before the softmax."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.conformance.calling.target import is_from_transformers
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.fused import FUSED, fused_arguments
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.softmax import has_sink
from heedful.conformance.recording.dataflow import (
    ancestors,
    is_projection,
    steps_from_projection,
)
from heedful.conformance.recording.observation import Observation, tensor_of, value_of
from heedful.conformance.recording.source import SourceLine, attribute_definition
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step

SHORT = 1e-2  # tokens this short keep soft-caps in their linear part
TOLERANCE = 1e-3
SCALINGS: tuple[str, ...] = (
    *("mul", "mul_", "div", "div_", "truediv", "true_divide", "imul", "itruediv", "multiply"),
)
ADDITIONS: tuple[str, ...] = ("add", "add_", "iadd")


class _Scale(NamedTuple):
    """The scale of an attention.

    Attributes:
        factor: by which the products of unscaled queries and keys are multiplied in all.
        formula: what it equals, such as "1/√d_model"; "" if nothing known.
        steps: that multiply queries or keys before the product.
    """

    factor: float
    formula: str
    steps: list[Step]


@probe("scale-missing", "scale-wrong")
def scale(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Regress the logits on the products of queries and keys: the slope is the scale."""
    observation = evidence.subject.record(evidence.inputs.scaled(SHORT))
    other_inputs = evidence.subject.draw(*evidence.inputs.sizes, seed=1).scaled(SHORT)
    others = find_attentions(evidence.subject.record(other_inputs))
    for attention, other in zip(find_attentions(observation), others, strict=False):
        without_logits = attention.softmax_step is None or has_sink(attention)
        slope = None if without_logits else _slope(attention, other)
        if slope is None:
            continue
        used = _total_scale(evidence, observation, attention, slope)
        D = attention.query.shape[-1]
        formula = used.formula and f" = {used.formula}"
        yield Fact("scale", f"{used.factor:.4g}{formula} (head size {D})")
        wrong = abs(used.factor - D**-0.5) > TOLERANCE * D**-0.5
        if wrong and D > 1 and not _is_intended(attention, used.factor):
            yield _finding(evidence, observation, attention, used)
            return


def _slope(attention: RecordedAttention, other: RecordedAttention) -> float | None:
    """Return the slope of the logits over the products of queries and keys; None if they do not lie on a line.

    A difference of two runs is used, in which biases that depend on positions alone cancel, and deviations from the
    mean of a row, because the softmax ignores what all logits of a row have in common.
    """
    if attention.scores.shape != other.scores.shape:
        return None
    visible = attention.visible & other.visible
    visible &= attention.logits.isfinite() & other.logits.isfinite()
    x = _centred(attention.scores - other.scores, visible)
    y = _centred(attention.logits - other.logits, visible)
    if not x.norm() > 0:
        return None
    slope = ((x * y).sum() / (x * x).sum()).item()
    is_linear = (y - slope * x).norm() <= 1e-3 * y.norm().clamp_min(1e-30)
    return slope if is_linear and slope != 0 else None


def _centred(values: Tensor, visible: Tensor) -> Tensor:
    """Subtract the mean of each row's visible entries; hidden ones become 0."""
    count = visible.sum(-1, keepdim=True).clamp_min(1)
    mean = values.masked_fill(~visible, 0).sum(-1, keepdim=True) / count
    return torch.where(visible, values - mean, 0)


def _total_scale(
    evidence: Evidence, observation: Observation, attention: RecordedAttention, slope: float
) -> _Scale:
    """Multiply a slope by the factors that queries and keys were multiplied by before their product."""
    steps, factors = [], []
    for source in (attention.query_source, attention.key_source):
        for step in steps_from_projection(observation, source):
            factor = _factor(observation, step) if step.operation in SCALINGS else None
            if factor is not None:
                steps.append(step)
                factors.append(factor)
    total = slope * math.prod(factors)
    return _Scale(total, _formula(total, attention, evidence), steps)


def _factor(observation: Observation, step: Step) -> float | None:
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


def _formula(scale: float, attention: RecordedAttention, evidence: Evidence) -> str:
    """Return what a scale equals, in terms of the sizes; "" if nothing known."""
    D, H = attention.query.shape[-1], evidence.expected.num_heads or 1
    formulas = {
        "1/√head_dim": D**-0.5,
        "no scaling": 1.0,
        "√head_dim": D**0.5,
        "1/√d_model": (D * H) ** -0.5,
        "1/√num_heads": H**-0.5,
        "1/head_dim": 1 / D,
        "head_dim": float(D),
        "1/head_dim^¼": D**-0.25,
        "1/√(number of tokens)": attention.key.shape[1] ** -0.5,
        "1/√batch": evidence.inputs.sizes[0] ** -0.5,
        "1/d_model": 1 / (D * H),
    }
    near = (name for name, value in formulas.items() if abs(scale - value) <= TOLERANCE * value)
    return next(near, "")


def _is_intended(attention: RecordedAttention, scale: float) -> bool:
    """Check whether a scale other than 1/√head_dim is right.

    It is, if queries and keys are normalised, or if the factor is part of a projection's weights.
    """
    query_norms, key_norms = attention.query.norm(dim=-1), attention.key.norm(dim=-1)
    if all(norms.std() <= 1e-3 * norms.mean() for norms in (query_norms, key_norms)):
        return True
    if abs(scale - 1) > TOLERANCE:
        return False
    D = attention.query.shape[-1]
    return (query_norms.mean() / key_norms.mean()).item() < 1.3 * D**-0.5


def _attends_to_tokens_themselves(observation: Observation, attention: RecordedAttention) -> bool:
    """Check whether projected queries attend to tokens that are keys and values as they are.

    This is the attention of Luong et al. 2015, which has no scale: the trained projection learns it.
    """
    query_path = steps_from_projection(observation, attention.query_source)
    key_path = steps_from_projection(observation, attention.key_source)
    return (
        attention.key.shape == attention.value.shape
        and bool(torch.equal(attention.key, attention.value))
        and any(map(is_projection, query_path))
        and not any(map(is_projection, key_path))
    )


def _finding(
    evidence: Evidence, observation: Observation, attention: RecordedAttention, scale: _Scale
) -> Finding:
    """Build the finding on a wrong scale."""
    D = attention.query.shape[-1]
    is_missing = abs(scale.factor - 1) <= TOLERANCE
    # A model of transformers has weights that were trained with its scale.
    is_convention = (
        is_from_transformers(evidence.subject.module)
        or _adds_trained_bias(observation, attention)
        or (is_missing and _attends_to_tokens_themselves(observation, attention))
    )
    formula = scale.formula and f" ({scale.formula})"
    return Finding(
        "scale-missing" if is_missing else "scale-wrong",
        "convention" if is_convention else "bug",
        f"The logits grow by {scale.factor:.4g}{formula} per unit of query · key; 1/√head_dim is {D**-0.5:.4g}.",
        f"head size {D}, {attention.query.shape[1]} tokens",
        _scaling_line(evidence, attention, scale.steps),
    )


def _scaling_line(
    evidence: Evidence, attention: RecordedAttention, steps: list[Step]
) -> SourceLine | None:
    """Return the line that scales queries, keys or scores, or the one that defines the number.

    If several steps scale queries and keys, the last one does so once too often.
    """
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
    return _definition_of_factor(evidence, step) or SourceLine.of(step)


def _definition_of_factor(evidence: Evidence, step: Step) -> SourceLine | None:
    """Return the line that defines the attribute `self.…scal…` that a step multiplies by, if it reads one."""
    if step.operation == FUSED and fused_arguments(step)["scale"] is None:
        return None
    try:
        tree = ast.parse(step.source)
    except SyntaxError:  # the head of a statement with a body
        return None
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if "scal" in name.lower():
                path = f"{step.module}.{name}" if step.module else name
                return attribute_definition(evidence.subject.module, path)
    return None


def _adds_trained_bias(observation: Observation, attention: RecordedAttention) -> bool:
    """Check whether a trained bias is added to the scores: their scale may be left to training (Raffel et al. 2020)."""
    steps = observation.trace.steps
    chain = {step.index for step in attention.chain}
    biases = [
        source
        for step in attention.chain[1:]
        if step.operation in ADDITIONS
        for source in step.inputs
        if source.step not in chain
    ]
    origins = [
        source
        for bias in biases
        if bias.step is not None
        for index in ancestors(steps, steps[bias.step])
        for source in steps[index].inputs
    ]
    return any(source.kind == "parameter" for source in (*biases, *origins))
