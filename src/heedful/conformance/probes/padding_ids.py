"""Probe: where the target tells padding by the tokens' ids, real tokens do not see the padding alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.evidence.attention import FAINT
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

PADDED = 2
"""The number of tokens at the end of each sequence that are padding."""


@probe("mask-inverted")
def padding_ids(evidence: Evidence) -> Iterator[Finding | Fact]:
    """End each sequence with the id of padding, if the target compares ids with it: whom do real tokens see?"""
    inputs, padding = evidence.inputs, _padding_id(evidence)
    B, T = inputs.sizes
    if padding is None or T <= PADDED + 2:
        return
    ids = inputs.arguments[evidence.subject.convention.names[0]].clone()
    if ids.dim() != 2:
        return
    ids[ids == padding] = (padding + 1) % inputs.vocabulary
    ids[:, T - PADDED :] = padding
    padded = replace(
        inputs, arguments={**inputs.arguments, evidence.subject.convention.names[0]: ids}
    )
    observation = attempt(lambda: evidence.subject.record(padded))
    if isinstance(observation, Exception):
        return
    compared = _comparison(observation, ids == padding)
    weights = _weights_of_real_tokens(evidence, observation)
    if compared is None or weights is None:
        return
    of_real, of_padding = weights[..., : T - PADDED], weights[..., T - PADDED :]
    case = f"B = {B}, T = {T}, the last {PADDED} tokens are {padding}"
    if of_padding.max() > FAINT and of_real.max() < FAINT:
        yield Finding(
            "mask-inverted",
            "bug",
            f"The id of padding is {padding}; here real tokens see only the padding.",
            case,
            SourceLine.of(compared),
        )


def _padding_id(evidence: Evidence) -> int | None:
    """Return the id of padding of the embedding that reads the tokens; None if there is none."""
    module, vocabulary = evidence.subject.module, evidence.inputs.vocabulary
    parts = () if module is None or not vocabulary else module.modules()
    found = (it.padding_idx for it in parts if isinstance(it, nn.Embedding))
    return next((it for it in found if it is not None and it < vocabulary), None)


def _comparison(observation: Observation, is_padding: Tensor) -> Step | None:
    """Return the first step that tells padding from real tokens by their ids."""
    for step in observation.trace:
        value = tensor_of(step)
        if value is None or value.dtype != torch.bool or value.numel() != is_padding.numel():
            continue
        told = value.reshape(is_padding.shape) if value.shape[0] == len(is_padding) else None
        if told is not None and (torch.equal(told, is_padding) or torch.equal(told, ~is_padding)):
            return step
    return None


def _weights_of_real_tokens(evidence: Evidence, observation: Observation) -> Tensor | None:
    """Return the weights (…, T) that the queries of real tokens give all tokens; None if no attention is found."""
    T = evidence.inputs.sizes[1]
    for attention in find_attentions(observation):
        if attention.applied_weights.shape[1:] == (T, T):
            return attention.applied_weights[:, : T - PADDED]
    return None
