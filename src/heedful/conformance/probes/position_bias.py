"""Check that biases of the positions tell distances apart, and that linear ones have the slopes of ALiBi."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from math import prod

import torch
from torch import Tensor

from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.designs import reads_trained_numbers
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.regression import centred, slope_of
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.assignments import assignment_before, variables_read
from heedful.conformance.recording.dataflow import (
    LOOKUPS,
    VIEWS,
    ancestors,
    behind_views,
    steps_from_tokens,
)
from heedful.conformance.recording.definitions import attribute_definition
from heedful.conformance.recording.observation import Observation, value_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.recording.strides import stride_line
from heedful.conformance.recording.target_source import prose_about
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step
from heedful.scores import alibi_slopes

PRODUCTS: tuple[str, ...] = ("mul", "mul_", "imul", "multiply", "outer", "einsum")
PASSED_ON: tuple[str, ...] = (*VIEWS, "neg", "masked_fill")
LINEAR_BIAS: re.Pattern[str] = re.compile(r"alibi|linear bias")
"""Words that announce biases which fall with the distance (Press et al. 2022), in lower case."""
SAME_SLOPE = 1e-2  # relative: slopes may be rounded to half precision
AXES = 3  # of a window: one for tokens, two for pixels, three for voxels


@probe("weights-wrong")
def position_bias(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Compare the biases of pairs of tokens: equal ones at equal distances only, and falling ones as in the paper."""
    others = find_attentions(evidence.on_other_tokens(1))
    for attention, other in zip(evidence.attentions, others, strict=False):
        finding = _table(evidence, attention) or _linear(evidence, attention, other)
        if finding is not None:
            yield finding
            return


# --- trained tables ----------------------------------------------------------------------------------


def _table(evidence: Evidence, attention: RecordedAttention) -> Finding | None:
    """Return a finding if a table with a row for each distance is read by an index that confuses distances.

    The size of the table tells the sizes of the window: a table for 2 × 3 pixels has 3 · 5 rows.
    """
    observation, N = evidence.baseline, attention.query.shape[1]
    for step in observation.trace:
        table, index = _lookup(observation, step)
        if table is None or index is None or index[1].numel() != N * N:
            continue
        windows = [it for rows in set(table.shape) for it in _windows(N, rows)]
        keys = index[1].reshape(N, N)
        confused = [_confused(keys, _distances(window)) for window in windows]
        if not confused or not all(confused):
            continue
        (i, j), (k, l) = next(pairs for pairs in confused if pairs)
        proof = (
            f"Query {i} and key {j} share a row of the table with query {k} and key {l}, which are at another "
            f"distance in a window of {' × '.join(map(str, windows[0]))} tokens."
        )
        line = _line_of_index(evidence, index[0]) or SourceLine.of(step)
        remedy = (
            "Multiply the distance along each axis by the number of distances along all later axes."
        )
        return Finding("weights-wrong", "bug", proof, f"{N} tokens", line, remedy)
    return None


def _lookup(
    observation: Observation, step: Step
) -> tuple[Tensor | None, tuple[Source, Tensor] | None]:
    """Return the trained table that a step reads, and the source and value of its integer index."""
    if step.operation not in LOOKUPS:
        return None, None
    tables = [it for it in step.inputs if it.kind == "parameter"]
    values = ((it, value_of(observation, it)) for it in step.inputs if it.kind != "parameter")
    indices = [
        (it, value) for it, value in values if value is not None and not value.is_floating_point()
    ]
    if len(tables) != 1 or len(indices) != 1 or indices[0][1].dtype == torch.bool:
        return None, None
    return value_of(observation, tables[0]), indices[0]


def _windows(tokens: int, rows: int) -> Iterator[tuple[int, ...]]:
    """Yield the sizes of windows of so many tokens that have so many distances."""
    divisors = [n for n in range(2, tokens + 1) if tokens % n == 0]
    for axes in range(1, AXES + 1):
        for window in product(divisors, repeat=axes):
            if prod(window) == tokens and prod(2 * n - 1 for n in window) == rows:
                yield window


def _distances(window: tuple[int, ...]) -> Tensor:
    """Return a number for each pair of tokens of a window, equal for pairs at the same distance."""
    places = torch.cartesian_prod(*map(torch.arange, window)).reshape(prod(window), -1)
    distances = places[:, None] - places
    return (distances * (2 * prod(window)) ** torch.arange(len(window))).sum(-1)


def _confused(keys: Tensor, distances: Tensor) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return two pairs of tokens at different distances with the same key, or the other way round; None if none are."""
    seen: dict[tuple[str, int], tuple[int, tuple[int, int]]] = {}
    for i, j in product(range(len(keys)), repeat=2):
        key, distance = int(keys[i, j]), int(distances[i, j])
        for name, value in ((("key", key), distance), (("distance", distance), key)):
            first, pair = seen.setdefault(name, (value, (i, j)))
            if first != value:
                return pair, (i, j)
    return None


def _line_of_index(evidence: Evidence, index: Source) -> SourceLine | None:
    """Return the line that numbers distances: where coordinates are multiplied, in a constructor or on the way."""
    steps = evidence.baseline.trace.steps
    index = behind_views(steps, index)
    if index.step is None:
        defined = attribute_definition(evidence.subject.module, index.name)
        return defined and (stride_line(defined) or defined)
    made = (steps[it] for it in sorted(ancestors(steps, steps[index.step])))
    return SourceLine.of(next((it for it in made if it.operation in PRODUCTS), steps[index.step]))


# --- linear biases -----------------------------------------------------------------------------------


def _linear(
    evidence: Evidence, attention: RecordedAttention, other: RecordedAttention
) -> Finding | None:
    """Return a finding if a linear bias that no token and nothing trained decides favors far keys, or is not ALiBi's.

    Only code that speaks of ALiBi is held to its slopes.
    """
    shape = attention.scores.shape
    if attention.softmax_step is None or shape != other.scores.shape:
        return None
    if not attention.logits.shape == other.logits.shape == shape or shape[1] != shape[2]:
        return None
    if reads_trained_numbers(evidence.baseline, attention):
        return None
    visible = attention.visible & attention.logits.isfinite() & other.logits.isfinite()
    places = torch.arange(shape[1], dtype=attention.scores.dtype)
    ahead = places - places[:, None]
    meant = LINEAR_BIAS.search(prose_about(evidence.subject.callee)) is not None
    rates = _growth(attention, other, visible, ahead.abs())
    signed = _growth(attention, other, visible, ahead) if meant and not rates else []
    if signed and visible.triu(1).any():
        level, remedy = "bug", "Subtract the absolute distance, |i − j|, times a slope."
        proof = (
            f"The scores change by {max(signed, key=abs):.3g} for each token that a key is farther right, on both "
            "sides of the query: the nearest keys do not get the largest weights."
        )
    elif not rates:
        return None
    elif min(rates) > 0:
        level = "bug" if meant else "suspicious"
        proof = (
            f"The scores grow by {max(rates):.3g} for each token that a key is farther away: far keys get larger "
            "weights than near ones."
        )
        remedy = "Subtract the distance times a slope from the scores."
    elif (
        meant
        and not attention.fused  # its mask may hold another bias as well
        and max(rates) < 0
        and (proof := _unpublished(rates, attention.query.shape[-1]))
    ):
        level, remedy = "bug", "Begin with 2^(-8/heads), and multiply by it from head to head."
    else:
        return None
    line = _line_of_bias(evidence, attention)
    return Finding("weights-wrong", level, proof, f"{shape[1]} tokens", line, remedy)


def _unpublished(rates: list[float], D: int) -> str:
    """Return a sentence on slopes that are not those of ALiBi; "" if they are, or if there is only one.

    The paper's text continues the first slope, which is also the ratio of two neighbors, for any number of heads; its
    code does so for powers of two alone. Some models scale the biases as they scale the scores.
    """
    slopes = sorted({round(-rate, 6) for rate in rates}, reverse=True)
    n, ratio = len(slopes), slopes[min(1, len(slopes) - 1)] / slopes[0]
    published = sorted(alibi_slopes(n).tolist(), reverse=True)
    for expected in (published, [ratio ** (i + 1) for i in range(n)]):
        for factor in (1.0, D**-0.5):
            wanted = factor * torch.tensor(expected)
            if n == 1 or torch.allclose(torch.tensor(slopes), wanted, rtol=SAME_SLOPE):
                return ""
    received, meant = (", ".join(f"{it:.3g}" for it in some) for some in (slopes, published))
    return f"The slopes of the {n} heads are {received}. Those of ALiBi are {meant}."


def _growth(
    attention: RecordedAttention, other: RecordedAttention, visible: Tensor, distance: Tensor
) -> list[float]:
    """Return by how much the bias of each head grows with a distance (T, T); none if one is not linear in it."""
    rates = []
    for scores, others, logits, other_logits, seen in zip(
        attention.scores, other.scores, attention.logits, other.logits, visible, strict=True
    ):
        scale = slope_of(centred(scores - others, seen), centred(logits - other_logits, seen))
        if scale is None:
            return []
        bias = centred(logits - scale * scores, seen)
        if not bias.norm() > 1e-6 * centred(logits, seen).norm():
            return []
        rate = slope_of(centred(distance, seen), bias)
        if rate is None:
            return []
        rates.append(rate)
    return rates


def _line_of_bias(evidence: Evidence, attention: RecordedAttention) -> SourceLine | None:
    """Return the line that multiplies distances by slopes, or that defines the bias, or else adds it."""
    steps = evidence.baseline.trace.steps
    from_tokens, chain = steps_from_tokens(steps), {step.index for step in attention.chain}
    for step in attention.chain[1:] or attention.chain:
        beside = [it for it in step.inputs if it.step not in chain]
        for source in beside:
            value, T = value_of(evidence.baseline, source), attention.scores.shape[-1]
            if value is None or value.shape[-1:] != (T,) or source.step in from_tokens:
                continue
            if not value.is_floating_point():
                continue
            while source.step is not None and steps[source.step].operation in PASSED_ON:
                source = steps[source.step].inputs[0]
            if source.step is not None:
                return SourceLine.of(steps[source.step])
            defined = attribute_definition(evidence.subject.module, source.name)
            return _made_before(defined) if defined else SourceLine.of(step)
    return None


def _made_before(definition: SourceLine) -> SourceLine:
    """Return the line that makes the local variable which a definition only keeps, or else the definition."""
    read = [it for it in variables_read(definition.file, definition.line) if it != "self"]
    if len(read) != 1:
        return definition
    return assignment_before(definition.file, definition.line, read[0], 1) or definition
