"""Probe: a call leaves the masks that it is given as they are."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.padded_batch import padded_subject, real_tokens
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.observation import Observation
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Finding

ASSIGNING = ("setitem", "iadd", "isub", "imul", "iand", "ior", "ixor", "itruediv")
"""The operations, beside those whose names end in "_", that change a tensor in place."""


@probe("stale-state")
def changed_arguments(evidence: Evidence) -> Iterator[Finding]:
    """Give each mask, and compare it with a copy after the call. The next call may be given the same tensor."""
    padded, (B, T) = padded_subject(evidence), evidence.inputs.sizes
    subject = padded or evidence.subject
    masks: list[tuple[str, dict[str, Tensor]]] = []
    if padded is not None and padded.padding is not None:
        masks.append((padded.padding.name, {"keep": real_tokens(evidence, "right")}))
    if subject.attention_mask is not None:
        masks.append((subject.attention_mask.name, {"attend": torch.ones(T, T).tril().bool()}))
    for name, mask in masks:
        arguments = attempt(lambda it=mask: subject.arguments(evidence.inputs, **it))
        given = arguments.get(name) if isinstance(arguments, dict) else None
        if not isinstance(given, Tensor):
            continue
        before = given.clone()
        run = attempt(lambda it=arguments: subject.record_call(it, evidence.inputs))
        if isinstance(run, Observation) and differing_entries(given, before).any():
            yield Finding(
                "stale-state",
                "bug",
                f"The call changes {name}, the tensor that its caller has made: the next layer or call that is given "
                "the same mask hides other tokens.",
                f"B = {B}, T = {T}",
                _line_changing(run, name),
                f"Change a copy: {name} = {name}.clone(), or an operation that returns a new tensor.",
            )
            return


def _line_changing(run: Observation, name: str) -> SourceLine | None:
    """Return the line of the first step that changes an argument in place, or what is taken from it."""
    views: set[int] = set()
    for step in run.trace:
        read = step.inputs[:1]
        if any((it.kind, it.name) == ("input", name) or it.step in views for it in read):
            if step.operation in ASSIGNING or step.operation.removesuffix("__").endswith("_"):
                return SourceLine.of(step)
            views.add(step.index)
    return None
