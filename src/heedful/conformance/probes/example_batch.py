"""Probe: a sequence of an example gives the same beside a longer one as alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.resizing import Resized
from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.noise import draws_noise
from heedful.conformance.probes.divergence import first_divergent_step
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step


@probe("padding-leak")
def example_batch(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Run the shortest second sequence of an example beside the longest one, and alone. Its output must be the same."""
    subject = evidence.subject
    if not subject.batched or evidence.inputs.sizes[0] < 2 or evidence.influence[0, :, 1, :].any():
        return
    for name, lengths in _lengths(subject.convention.constants).items():
        finding = _compared(evidence, name, lengths)
        if finding is not None:
            yield finding
            return


def _compared(evidence: Evidence, name: str, lengths: Tensor) -> Finding | None:
    """Compare the output of the shortest sequence alone with its output beside the longest one."""
    subject = evidence.subject
    chosen = torch.stack([lengths.argmin(), lengths.argmax()])
    short, long = map(int, lengths[chosen])
    inputs = subject.draw(2, evidence.inputs.sizes[1])
    pair = attempt(lambda: _observed(subject, inputs, chosen, (long, long)))
    alone = attempt(lambda: _observed(subject, inputs.entry(0), chosen[:1], (long, short)))
    if isinstance(pair, Exception) or isinstance(alone, Exception) or draws_noise(evidence):
        return None
    if not differing_entries(pair.output[0], alone.output[0]).any():
        return None
    difference = (pair.output[0] - alone.output[0]).abs().max()
    step = _softmax_over_padding(pair, short, long) or first_divergent_step(alone, pair)
    return Finding(
        "padding-leak",
        "bug",
        f"By {name}, a sequence of the example has {short} tokens. Beside one of {long}, with padding, its output "
        f"differs from its output alone by {difference:.3g}.",
        f"{name} {lengths.tolist()}",
        SourceLine.of(step),
    )


def _lengths(constants: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the arguments that are called lengths and hold those of a second sequence, which is another argument."""
    tensors = _of_sequences(constants)
    return {
        name: value
        for name, value in tensors.items()
        if "len" in name.lower() and value.dim() == 1 and not value.is_floating_point()
        if 0 < int(value.min()) < int(value.max())
        if any(it.shape[1:2] == (int(value.max()),) for it in tensors.values())
    }


def _of_sequences(constants: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of an example that have a part for each sequence."""
    return {
        name: it.value
        for name, it in constants.items()
        if isinstance(it, Resized) and it.has_part_per_sequence
    }


def _observed(
    subject: Subject, inputs: Inputs, chosen: Tensor, tokens: tuple[int, int]
) -> Observation:
    """Record a call with some sequences of the example, cut from the first of two numbers of tokens to the second."""
    whole, shown = tokens
    given = {
        name: (value[chosen, :shown] if value.shape[1:2] == (whole,) else value[chosen])
        for name, value in _of_sequences(subject.convention.constants).items()
    }
    typed = {
        name: it.to(subject.dtype) if it.is_floating_point() else it for name, it in given.items()
    }
    return subject.record_call(subject.arguments(inputs) | typed, inputs)


def _softmax_over_padding(pair: Observation, short: int, long: int) -> Step | None:
    """Return the first softmax that gives the padding of the first sequence weights."""
    for step in pair.trace:
        value = tensor_of(step)
        if step.operation != "softmax" or value is None or value.shape[0] != len(pair.output):
            continue
        for axis in (axis for axis, size in enumerate(value.shape) if axis and size == long):
            if value[0].narrow(axis - 1, short, long - short).any():
                return step
    return None
