"""Probe: where the target tells padding by the tokens' ids, real tokens do not see the padding alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from heedful.conformance.calling import names
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.masks import masks_by_name
from heedful.conformance.evidence.attention import FAINT
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import (
    SOFTMAXES,
    unused_steps,
)
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.forwarding import call_omitting_beside
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.observation import Observation, tensor_of, value_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

PADDED = 2
"""The number of tokens at the end of each sequence that are padding."""


@probe("mask-inverted")
def padding_ids(evidence: Evidence) -> Iterator[Finding | Fact]:
    """End each sequence with the id of padding, if the target compares ids with it, and see whom real tokens see."""
    padding, (B, T) = padding_id(evidence), evidence.inputs.sizes
    if padding is None or T <= PADDED + 2:
        return
    is_padding = at_the_end(B, T)
    padded = inputs_with_padding(evidence, padding, is_padding)
    if padded is None:
        return
    observation = attempt(lambda: evidence.subject.record(padded))
    if isinstance(observation, Exception):
        return
    compared = step_telling_padding(observation, is_padding)
    if compared is not None:
        yield from _leaks(evidence, padded, observation, compared)
    weights = _weights_of_real_tokens(evidence, observation)
    case = f"B = {B}, T = {T}, the last {PADDED} tokens are {padding}"
    kept = None if compared is None else _kept_for_padding(observation, is_padding)
    if kept is not None:
        proof = f"The id of padding is {padding}; this mask keeps what is computed for each token at padding alone."
        yield Finding("mask-inverted", "bug", proof, case, SourceLine.of(kept))
    if compared is None or weights is None:
        return
    of_real, of_padding = weights[..., : T - PADDED], weights[..., T - PADDED :]
    if of_padding.max() > FAINT and of_real.max() < FAINT:
        yield Finding(
            "mask-inverted",
            "bug",
            f"The id of padding is {padding}; here real tokens see only the padding.",
            case,
            SourceLine.of(compared),
        )


def _leaks(
    evidence: Evidence, padded: Inputs, observation: Observation, compared: Step
) -> Iterator[Finding]:
    """Report outputs that the number of padding ids changes, if their mask is not given to a call, or to nothing."""
    subject, (B, T) = evidence.subject, padded.sizes
    argument = subject.convention.names[0]
    omitting = call_omitting_beside(subject.target.callee, argument, names.PADDING_MASKS)
    place = omitting or _unmasked_weights(observation, compared)
    alone = attempt(lambda: subject.run(padded.tokens(0, T - PADDED)).detach())
    if place is None or isinstance(alone, Exception) or subject.fixed_sizes is not None:
        return
    within = observation.output
    if within.shape != alone.shape:
        within = within[:, : T - PADDED]
    if alone.shape == within.shape and differing_entries(alone, within).any():
        distance = (alone - within).abs().max()
        yield Finding(
            "padding-leak",
            "bug",
            f"The code tells padding from real tokens by their ids, in {compared.name.partition('·')[0]!r}, but "
            f"{'hands no mask to this call' if omitting else 'nothing uses that'}. With {PADDED} ids of padding at "
            f"the end, the output differs by {distance:.3g}.",
            f"B = {B}, T = {T}",
            place,
        )


def _unmasked_weights(observation: Observation, compared: Step) -> SourceLine | None:
    """Return the last softmax over the tokens, or their exponentials, if nothing uses what tells padding from them."""
    steps, T = observation.trace.steps, observation.inputs.sizes[1]
    if compared.index not in unused_steps(steps):
        return None
    weights = [it for it in steps if it.operation in (*SOFTMAXES, "exp") and T in it.shape]
    return SourceLine.of(weights[-1]) if weights else None


def at_the_end(B: int, T: int) -> Tensor:
    """Return which tokens are padding, (B, T) Boolean: the last ones of each sequence."""
    return (torch.arange(T) >= T - PADDED).expand(B, T)


def inputs_with_padding(evidence: Evidence, padding: int, is_padding: Tensor) -> Inputs | None:
    """Return the sample with the id of padding at some places, and no other; None if it has no ids (B, T).

    Args:
        evidence: The evidence.
        padding: The id of padding.
        is_padding: (B, T) Boolean, where it stands.
    """
    inputs, name = evidence.inputs, evidence.subject.convention.names[0]
    ids = inputs.arguments[name].clone()
    if ids.dim() != 2:
        return None
    ids[ids == padding] = (padding + 1) % inputs.vocabulary
    ids[is_padding] = padding
    return replace(inputs, arguments={**inputs.arguments, name: ids})


def padding_id(evidence: Evidence) -> int | None:
    """Return the id of padding: of the embedding that reads the tokens, or else the one that ids are compared with.

    None if there is none.
    """
    module, vocabulary = evidence.subject.module, evidence.inputs.vocabulary
    parts = () if module is None or not vocabulary else module.modules()
    found = (it.padding_idx for it in parts if isinstance(it, nn.Embedding))
    embedded = next((it for it in found if it is not None and it < vocabulary), None)
    return _compared_id(evidence) if embedded is None and vocabulary else embedded


def hidden_padding_id(evidence: Evidence) -> int | None:
    """Return the id of the padding that a target has to hide itself; None if there is none.

    A target that takes a mask leaves that to its callers, and padding has no links.
    """
    subject = evidence.subject
    takes_mask = subject.padding or subject.attention_mask or masks_by_name(subject)
    return None if takes_mask or subject.convention.links_tokens else padding_id(evidence)


def _compared_id(evidence: Evidence) -> int | None:
    """Return the number that the target's code compares the ids with; None if there is none."""
    name = evidence.subject.convention.names[0]
    for step in evidence.baseline.trace:
        compares = step.operation in ("eq", "ne", "eq_", "__eq__", "__ne__")
        if compares and [(it.kind, it.name) for it in step.inputs] == [("input", name)]:
            return next((it for it in step.arguments if type(it) is int and it >= 0), None)
    return None


def step_telling_padding(observation: Observation, is_padding: Tensor) -> Step | None:
    """Return the first step that tells padding from real tokens by their ids."""
    for step in observation.trace:
        value = tensor_of(step)
        if value is None or value.dtype != torch.bool or value.numel() != is_padding.numel():
            continue
        told = value.reshape(is_padding.shape) if value.shape[0] == len(is_padding) else None
        if told is not None and (torch.equal(told, is_padding) or torch.equal(told, ~is_padding)):
            return step
    return None


def _kept_for_padding(observation: Observation, is_padding: Tensor) -> Step | None:
    """Return the step whose result, 1 at padding and 0 at real tokens, is multiplied with rows that differ by token.

    Rows that are equal may be an embedding of padding.
    """
    T = is_padding.shape[1]
    for step in observation.trace:
        sources = step.inputs if step.operation == "mul" and len(step.inputs) == 2 else ()
        for source, other in zip(sources, reversed(sources), strict=True):
            mask, rows = value_of(observation, source), value_of(observation, other)
            if mask is None or rows is None or mask.numel() != is_padding.numel():
                continue
            is_mask = torch.equal(mask.reshape(is_padding.shape).bool(), is_padding)
            differ = (
                rows.dim() > 1 and rows.shape[-2] == T and bool((rows != rows[..., :1, :]).any())
            )
            if is_mask and differ and source.step is not None:
                return observation.trace[source.step]
    return None


def _weights_of_real_tokens(evidence: Evidence, observation: Observation) -> Tensor | None:
    """Return the weights (…, T) that the queries of real tokens give all tokens; None if no attention is found."""
    T = evidence.inputs.sizes[1]
    for attention in find_attentions(observation):
        if attention.applied_weights.shape[1:] == (T, T):
            return attention.applied_weights[:, : T - PADDED]
    return None
