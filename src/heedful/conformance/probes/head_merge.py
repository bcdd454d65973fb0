"""Probe: merging the heads leaves every token's context in its own row."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, permutations

import torch
from torch import Tensor

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import is_projection, steps_to_next_projection
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.observation import tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step


@probe("heads-mixed-merge")
def head_merge(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Follow each token's context to the next projection and beyond it, and check that it stays in that token's row."""
    B, T = evidence.inputs.sizes
    if T < 3:
        return
    contexts = (*_of_each_attention(evidence), *_of_heads_apart(evidence))
    for expected, context_step in (*contexts, *_projected(evidence, contexts)):
        for step in steps_to_next_projection(evidence.baseline, context_step)[1:]:
            value = tensor_of(step)
            if value is None or value.numel() != expected.numel() or not value.is_floating_point():
                continue
            forms = [value]
            if evidence.subject.convention.is_image:
                forms += _with_tokens_on_one_axis(value, T)
            if _mixes_tokens(forms, expected):
                unsplit = _unsplit_queries(evidence)
                reason = "" if unsplit is None else " The queries were never split into heads."
                behind = (
                    "the output projection"
                    if is_projection(context_step)
                    else "the heads are merged"
                )
                yield Finding(
                    "heads-mixed-merge",
                    "bug",
                    f"After {behind}, a token's row holds contexts of other tokens.{reason}",
                    f"B = {B}, T = {T}",
                    SourceLine.of(unsplit or step),
                )
                return


def _of_each_attention(evidence: Evidence) -> Iterator[tuple[Tensor, Step]]:
    """Yield the contexts of all heads of each token, (B, T, H·D), with the step that computes them."""
    B, T = evidence.inputs.sizes
    for index, attention in enumerate(evidence.attentions):
        if attention.applied_weights.shape[1] != T or len(attention.context) % B:
            continue
        entries = evidence.rows_of_entries(index)
        if entries is None:
            continue
        context = attention.context  # (B·H, T, D) in any order of B and H
        rows = [context[rows].transpose(0, 1).reshape(T, -1) for rows in entries]
        yield torch.stack(rows), attention.context_step


def _of_heads_apart(evidence: Evidence) -> Iterator[tuple[Tensor, Step]]:
    """Yield the contexts of heads that are computed one by one, (B, T, H·D), with the step that computes the last."""
    contexts = [
        (expected, step)
        for expected, step in _of_each_attention(evidence)
        if len(expected) * len(expected[0]) == math.prod(step.shape[:-1])
    ]
    if len({it.shape for it, _ in contexts}) == 1 < len(contexts):
        yield torch.cat([it for it, _ in contexts], -1), contexts[-1][1]


def _projected(
    evidence: Evidence, contexts: tuple[tuple[Tensor, Step], ...]
) -> Iterator[tuple[Tensor, Step]]:
    """Yield the projected contexts of each token, (B, T, C), with the step that projects them."""
    for _, context_step in contexts:
        views = {it.index for it in steps_to_next_projection(evidence.baseline, context_step)}
        for step in evidence.baseline.trace.steps[context_step.index + 1 :]:
            value = tensor_of(step)
            if value is None or value.dim() != 3 or value.shape[:2] != evidence.inputs.sizes:
                continue
            if is_projection(step) and any(it.step in views for it in step.inputs):
                yield value, step


def _unsplit_queries(evidence: Evidence) -> Step | None:
    """Return the step whose result is taken as the queries of one head, in a target of several heads.

    A line that several attentions run may compute one head after the other.
    """
    B, _ = evidence.inputs.sizes
    lines = [attention.scores_step.line for attention in evidence.attentions]
    for attention in evidence.attentions if (evidence.expected.num_heads or 1) > 1 else ():
        made = attention.query_source.step
        alone = len(attention.query) == B and lines.count(attention.scores_step.line) == 1
        if alone and made is not None:
            return evidence.baseline.trace.steps[made]
    return None


def _mixes_tokens(forms: list[Tensor], expected: Tensor) -> bool:
    """Check whether a tensor rearranges the expected numbers, and none of its readings has them in their rows.

    A tensor with other numbers was computed with, for example by a gate or a rotation, and proves nothing.

    Args:
        forms: a tensor in any layout, and in others that hold the tokens on one axis.
        expected: (B, T, H·D); the order of the numbers within a row does not matter.
    """
    B, T, _ = expected.shape
    if differing_entries(expected.flatten().sort().values, forms[0].flatten().sort().values).any():
        return False
    readings = [
        rows
        for form in forms
        for rows in (*_readings_by_token(form, B, T), *_readings_by_folded_batch(form, B, T))
    ]
    expected = expected.sort(-1).values
    return bool(readings) and not any(
        rows.shape == expected.shape and not differing_entries(rows.sort(-1).values, expected).any()
        for rows in readings
    )


def _with_tokens_on_one_axis(value: Tensor, T: int) -> list[Tensor]:
    """Return a feature map with its pixels on one axis, for every two or three axes that may hold them.

    They may be taken line by line or column by column.
    """
    axes = range(1, value.dim())  # the first axis is that of the batch
    of_pixels = (*permutations(axes, 2), *combinations(axes, 3))
    return [
        value.movedim(chosen, tuple(range(1, 1 + len(chosen)))).flatten(1, len(chosen))
        for chosen in of_pixels
        if math.prod(value.shape[axis] for axis in chosen) == T
    ]


def _readings_by_token(value: Tensor, B: int, T: int) -> list[Tensor]:
    """Return (B, T, …) for each way to read a tensor that has axes of B and T, or one axis of both."""
    readings = []
    for t_axis in (axis for axis, size in enumerate(value.shape) if size == T):
        for b_axis, size in enumerate(value.shape):
            if size == B and b_axis != t_axis:
                readings.append(value.movedim((b_axis, t_axis), (0, 1)).reshape(B, T, -1))
        if B == 1:
            readings.append(value.movedim(t_axis, 0).reshape(1, T, -1))
    for axis in (axis for axis, size in enumerate(value.shape) if size == B * T):
        rows = value.movedim(axis, 0)
        readings += [rows.reshape(B, T, -1), rows.reshape(T, B, -1).transpose(0, 1)]
    return readings


def _readings_by_folded_batch(value: Tensor, B: int, T: int) -> list[Tensor]:
    """Return (B, T, …) for each way to read a tensor whose first axis holds batch and heads together."""
    if B == 1 or value.dim() == 0 or value.shape[0] % B:
        return []
    readings = []
    for t_axis in (axis for axis, size in enumerate(value.shape) if size == T and axis > 0):
        rows = value.movedim(t_axis, 1)
        batch_first = rows.reshape(B, -1, T, *rows.shape[2:]).transpose(1, 2)
        heads_first = rows.reshape(-1, B, T, *rows.shape[2:]).movedim(0, 2)
        readings += [batch_first.reshape(B, T, -1), heads_first.reshape(B, T, -1)]
    return readings
