"""Masks that code means to apply to scores, and that have no effect on later keys: why, and on which line."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.masking import APPLYING_OPERATIONS, MaskDefect, building_step
from heedful.conformance.recording.dataflow import FILLS, steps_from_tokens
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.line_tracer import LineTracer
from heedful.conformance.recording.observation import Observation, value_of
from heedful.conformance.recording.skipped_lines import line_skipping
from heedful.conformance.recording.source import SourceLine

MASKING: re.Pattern[str] = re.compile(
    r"\btri[lu]\b|masked_fill|\w*mask\w* = |-?inf\b|finfo", re.IGNORECASE
)
"""What statements contain that build or apply a mask."""
LOW = -1e4  # what hides a key if it is added to its score


def line_leaving_before_masks(
    subject: Subject, inputs: Inputs, keep: Tensor | None = None, words: re.Pattern[str] = MASKING
) -> SourceLine | None:
    """Return the condition by which a function of the target's file returns before it builds or applies a mask.

    Args:
        subject: The target.
        inputs: What it is called with.
        keep: True at real tokens, (B, T), for its padding argument.
        words: What the statements contain that build or apply the mask.
    """
    tracer = LineTracer(subject.target.forward)
    with tracer.tracing():
        subject.run(inputs, keep=keep)
    return line_skipping(words, subject.target.forward.__code__.co_filename, tracer.ran)


def fill_of_nothing(observation: Observation) -> MaskDefect | None:
    """Return the defect of a mask made from positions that is true nowhere, where scores are filled with it."""
    from_tokens = steps_from_tokens(observation.trace.steps)
    for step in observation.trace:
        for source in step.inputs if step.operation in FILLS else ():
            mask = value_of(observation, source)
            if mask is None or mask.dtype != torch.bool or mask.any() or source.step is None:
                continue
            made = observation.trace[source.step]
            if source.step not in from_tokens and made.operation in ("and", "iand", "logical_and"):
                explanation = "The mask is true nowhere, so the fill hides nothing."
                return MaskDefect("future-leak", explanation, SourceLine.of(made))
    return None


def mask_of_all_queries(
    observation: Observation, attention: RecordedAttention
) -> MaskDefect | None:
    """Return the defect of numbers that are added to the scores and hide the same keys from every query."""
    for step in attention.chain:
        for source in step.inputs if step.operation in APPLYING_OPERATIONS else ():
            bias = value_of(observation, source)
            if bias is None or not bias.is_floating_point() or source.step is None:
                continue
            if (
                bias.dim() >= 2
                and bias.shape[-2] == 1 < bias.shape[-1]
                and bool((bias < LOW).any())
            ):
                explanation = "The mask hides the same keys from every query."
                made = building_step(observation, [source]) or observation.trace[source.step]
                return MaskDefect("future-leak", explanation, SourceLine.of(made))
    return None
