"""By what the products of queries and keys are multiplied before the softmax."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

import torch

from heedful.conformance.calling.target import is_from_transformers
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.fused import FUSED, fused_arguments
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.softmax import has_sink
from heedful.conformance.recording.dataflow import ancestors, steps_from_projection
from heedful.conformance.recording.observation import Observation, tensor_of, value_of
from heedful.conformance.recording.source import SourceLine, attribute_definition
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step

SMALL = 1e-2  # tokens this short keep soft-caps in their linear part
NEAR = 1e-3
SCALINGS = ("mul", "mul_", "div", "div_", "truediv", "true_divide", "imul", "itruediv", "multiply")


@probe("scale-missing", "scale-wrong")
def scale(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Regresses the logits on the products of queries and keys: the slope is the scale in use."""
    observation = evidence.subject.record(evidence.inputs.scaled(SMALL))
    others = evidence.subject.draw(*evidence.inputs.sizes, seed=1).scaled(SMALL)
    other = find_attentions(evidence.subject.record(others))
    said = set()
    for attention, changed in zip(find_attentions(observation), other, strict=False):
        unseen = attention.softmax_step is None or has_sink(attention)
        slope = None if unseen else _slope(attention, changed)
        if slope is None:
            continue
        steps = _scalings(observation, attention)
        whole = slope * math.prod(factor for _, factor in steps)
        D = attention.query.shape[-1]
        meaning = _meaning(whole, attention, evidence)
        if (whole, D) not in said:
            said.add((whole, D))
            yield Fact("scale", f"{whole:.4g}{meaning and f' = {meaning}'} (head size {D})")
        wrong = abs(whole - D**-0.5) > NEAR * D**-0.5
        if wrong and D > 1 and not _is_meant(attention, observation, whole):
            yield _finding(
                evidence, observation, attention, whole, meaning, [it for it, _ in steps]
            )
            return


def _slope(attention: RecordedAttention, other: RecordedAttention) -> float | None:
    """How fast the logits grow with the products of queries and keys; None where they do not do so in a line.

    Two runs are compared, so that a bias that depends on positions alone cancels; within a row, for the softmax does
    not see what all its logits have in common.
    """
    if attention.scores.shape != other.scores.shape:
        return None
    seen = attention.visible & other.visible & attention.logits.isfinite() & other.logits.isfinite()
    x, y = (a - b for a, b in ((attention.scores, other.scores), (attention.logits, other.logits)))
    count = seen.sum(-1, keepdim=True).clamp_min(1)
    x, y = (
        torch.where(seen, it - it.masked_fill(~seen, 0).sum(-1, keepdim=True) / count, 0)
        for it in (x, y)
    )
    if not x.norm() > 0:
        return None
    slope = ((x * y).sum() / (x * x).sum()).item()
    straight = (y - slope * x).norm() <= 1e-3 * y.norm().clamp_min(1e-30)
    return slope if straight and slope != 0 else None


def _scalings(observation: Observation, attention: RecordedAttention) -> list[tuple[Step, float]]:
    """The multiplications by one number that queries and keys went through before they met."""
    found = []
    for source in (attention.query_source, attention.key_source):
        for step in steps_from_projection(observation, source):
            if step.operation in SCALINGS and (factor := _factor(observation, step)) is not None:
                found.append((step, factor))
    return found


def _factor(observation: Observation, step: Step) -> float | None:
    """The one number by which a step multiplies a tensor."""
    tensors = [value_of(observation, it) for it in step.arguments if isinstance(it, Source)]
    large = [it for it in tensors if it is not None and it.numel() > 1]
    out = tensor_of(step)
    if len(large) != 1 or out is None or out.numel() != large[0].numel():
        return None
    before = large[0].norm()
    return (out.norm() / before).item() if before > 0 else None


def _meaning(scale: float, attention: RecordedAttention, evidence: Evidence) -> str:
    """What a scale equals, in the field's terms."""
    D, H = attention.query.shape[-1], evidence.expected.num_heads or 1
    named = {
        "1/√head_dim": D**-0.5,
        "1, none at all": 1.0,
        "√head_dim, inverted": D**0.5,
        "1/√d_model": (D * H) ** -0.5,
        "1/√num_heads": H**-0.5,
        "1/head_dim": 1 / D,
        "head_dim, inverted": float(D),
        "1/head_dim^¼": D**-0.25,
        "1/√(number of tokens)": attention.key.shape[1] ** -0.5,
        "1/√batch": evidence.inputs.sizes[0] ** -0.5,
        "1/d_model": 1 / (D * H),
    }
    return next((name for name, it in named.items() if abs(scale - it) <= NEAR * it), "")


def _is_meant(attention: RecordedAttention, observation: Observation, scale: float) -> bool:
    """Whether another scale than 1/√head_dim is right: of normalised queries and keys, or folded into a projection."""
    norms = [it.norm(dim=-1) for it in (attention.query, attention.key)]
    if all(it.std() <= 1e-3 * it.mean() for it in norms):
        return True
    D = attention.query.shape[-1]
    if abs(scale - 1) > NEAR:
        return False
    return (norms[0].mean() / norms[1].mean()).item() < 1.3 * D**-0.5


def _finding(
    evidence: Evidence,
    observation: Observation,
    attention: RecordedAttention,
    scale: float,
    meaning: str,
    steps: list[Step],
) -> Finding:
    D = attention.query.shape[-1]
    made_so = is_from_transformers(evidence.subject.module)  # as its weights were trained
    name = "scale-missing" if abs(scale - 1) <= NEAR else "scale-wrong"
    at = [
        it for it in attention.chain if it.operation in SCALINGS and it is not attention.scores_step
    ]
    step = (steps + [it for it in at if _is_before(it, attention)] + [attention.scores_step])[0]
    return Finding(
        name,
        "convention" if made_so or _is_biased(observation, attention) else "bug",
        f"The logits grow by {scale:.4g} with each unit of query · key{meaning and f' ({meaning})'}; "
        f"1/√head_dim is {D**-0.5:.4g}.",
        f"head size {D}, {attention.query.shape[1]} tokens",
        SourceLine.of(steps[-1])
        if len(steps) > 1
        else _origin(evidence, step) or SourceLine.of(step),
    )


def _is_biased(observation: Observation, attention: RecordedAttention) -> bool:
    """Whether something trained is added to the scores: their scale may be left to training (Raffel et al. 2020)."""
    steps = observation.trace.steps
    chain = {it.index for it in attention.chain}
    added = [
        source
        for step in attention.chain[1:]
        if step.operation in ("add", "add_", "iadd")
        for source in step.inputs
        if source.step not in chain
    ]
    behind = {n for it in added if it.step is not None for n in ancestors(steps, steps[it.step])}
    trained = [*added, *(source for n in behind for source in steps[n].inputs)]
    return any(it.kind == "parameter" for it in trained)


def _is_before(step: Step, attention: RecordedAttention) -> bool:
    return attention.softmax_step is None or step.index < attention.softmax_step.index


def _origin(evidence: Evidence, step: Step) -> SourceLine | None:
    """Where the number was made, if the line that multiplies takes it from an attribute."""
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
