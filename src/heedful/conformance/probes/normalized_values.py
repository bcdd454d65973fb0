"""Probe: what normalizes queries and keys is not applied to something else in place of one of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.call_sites import lines_calling
from heedful.conformance.recording.dataflow import (
    PRODUCTS,
    VIEWS,
    ancestors,
    steps_from_tokens,
)
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.observation import Observation
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step

NORMALIZATIONS: tuple[str, ...] = (
    *("layer_norm", "rms_norm", "normalize", "rsqrt", "norm", "std", "var"),
    *("linalg_norm", "linalg_vector_norm", "square", "pow"),
)
"""The operations by which a normalization is told, also one that is written by hand."""

ARITHMETIC: tuple[str, ...] = (
    *("mul", "mul_", "div", "div_", "truediv", "add", "sub", "mean", "sum", "sqrt"),
    *("clamp", "clamp_min", "imul", "itruediv", "reciprocal", "neg"),
)
"""The operations that a normalization, a scale, a bias or a rotation consist of."""

PROJECTIONS: tuple[str, ...] = ("linear", "addmm", *PRODUCTS)


@probe("context-wrong", "weights-wrong")
def normalized_values(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Search for a normalization that keys, or queries, lack: of the values, or the second one of the other side.

    One over the tokens normalizes no vector.
    """
    for attention in evidence.attentions:
        if attention.softmax_step is None and not attention.fused:
            continue
        finding = _over_tokens(evidence, attention) or _report(evidence, attention)
        if finding is not None:
            yield finding
            return


def _report(evidence: Evidence, attention: RecordedAttention) -> Finding | None:
    observation = evidence.baseline
    sources = (attention.query_source, attention.key_source, attention.value_source)
    found = [_normalizations(observation, source) for source in sources]
    unknown = any(steps is None for steps in found)
    query, key, value = (steps or [] for steps in found)
    others = {step.index for step in (*query, *key)}
    own = [step for step in value if step.index not in others]
    if unknown or bool(query) == bool(key):
        return None
    one, other = ("queries", "keys") if query else ("keys", "queries")
    twice = [step for step in query or key if step.module != attention.scores_step.module]
    if not value and len({step.module for step in twice}) > 1:
        return Finding(
            "weights-wrong",
            "bug",
            f"The {one} are normalized twice, by two modules, and the {other} are not normalized.",
            f"head size {attention.query.shape[-1]}",
            _line(evidence, attention, twice[-1]),
            f"Apply one of the two normalizations to the {other}.",
        )
    if not own or _are_one(attention.key, attention.value):
        return None
    return Finding(
        "context-wrong",
        "bug",
        f"The {one} and the values are normalized after their projections, and the {other} are not: the scores "
        f"compare vectors of two kinds, and the values lose their lengths.",
        f"head size {attention.query.shape[-1]}",
        _line(evidence, attention, own[0]),
        f"Normalize the {other} instead of the values.",
    )


def _over_tokens(evidence: Evidence, attention: RecordedAttention) -> Finding | None:
    """Return a finding if each feature of queries and keys has length 1 over the tokens, and no vector has."""
    operands, (_, T) = (attention.query, attention.key), evidence.inputs.sizes
    if not all(_have_length_one(it, 1) and not _have_length_one(it, 2) for it in operands):
        return None
    steps, made = evidence.baseline.trace.steps, attention.query_source.step
    behind = set[int]() if made is None else ancestors(steps, steps[made])
    found = [it for it in sorted(behind) if steps[it].operation in NORMALIZATIONS]
    return Finding(
        "weights-wrong",
        "bug",
        f"Each feature of the queries and keys is divided by its length over the {T} tokens, so that the scores are no "
        "cosines of the vectors.",
        f"head size {attention.query.shape[-1]}",
        SourceLine.of(steps[found[-1]] if found else attention.scores_step),
        "Normalize over the dimension of the features.",
    )


def _have_length_one(vectors: Tensor, dim: int) -> bool:
    lengths = vectors.norm(dim=dim)
    return vectors.shape[dim] > 1 and torch.allclose(lengths, torch.ones_like(lengths), atol=1e-4)


def _are_one(key: Tensor, value: Tensor) -> bool:
    """Check whether the values are the keys, so that what normalizes these normalizes both (Zhu et al. 2021)."""
    return key.shape == value.shape and not differing_entries(key, value).any()


def _line(
    evidence: Evidence, attention: RecordedAttention, normalization: Step
) -> SourceLine | None:
    """Return the line that normalizes the values, in the function of the attention if a part of it does so."""
    module, part = evidence.subject.module, normalization.module
    if module is None or not part or part == attention.scores_step.module:
        return SourceLine.of(normalization)
    return next(iter(lines_calling(module, part)), SourceLine.of(normalization))


def _normalizations(observation: Observation, source: Source) -> list[Step] | None:
    """Return the steps that normalize what a projection makes of the tokens, before it becomes an operand.

    Return None if anything else happens in between, such as pooling or a convolution: that is another design, in
    which queries need no normalization.
    """
    steps, found = observation.trace.steps, list[Step]()
    from_tokens = steps_from_tokens(steps)
    pending, visited = [source.step], set[int]()
    projected = False
    while pending:
        index = pending.pop()
        if index is None or index in visited or index not in from_tokens:
            continue
        visited.add(index)
        step = steps[index]
        if step.operation in PROJECTIONS:
            projected = True
            continue
        if step.operation in NORMALIZATIONS:
            found.append(step)
        elif step.operation not in (*VIEWS, *ARITHMETIC):
            return None
        pending += [it.step for it in step.inputs]
    return sorted(found, key=lambda step: step.index) if projected else None
