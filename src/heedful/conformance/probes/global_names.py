"""Check that no step reads a global tensor where a local variable of a similar name was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from torch import Tensor

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import steps_from_tokens, unused_steps
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.recording.target_source import own_functions_of
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step
from heedful.shapes import times

SIMILARITY = 0.6  # difflib's ratio: "attn_scores" and "scores" have 0.71


@probe("undefined-or-global-name")
def global_names(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Look for steps that read a global tensor although the function computes one with a similar name."""
    for step in evidence.baseline.trace:
        for source in step.inputs:
            tensor = _global_tensor(evidence, step, source)
            local = None if tensor is None else _local_name(evidence, step, tensor, source.name)
            if tensor is None or local is None:
                continue
            yield Finding(
                "undefined-or-global-name",
                "bug",
                f"{source.name!r} is a global tensor of {times(tensor.shape)} numbers, the same for all tokens; "
                f"the call itself computes {local!r}.",
                "",
                SourceLine.of(step),
            )
            return


def _global_tensor(evidence: Evidence, step: Step, source: Source) -> Tensor | None:
    """Return the global tensor with more than one entry that a step reads under a source's name."""
    if source.kind != "constant":
        return None
    for function in own_functions_of(evidence.subject.callee):
        value = function.__globals__.get(source.name)
        same_file = function.__code__.co_filename == step.file
        if same_file and isinstance(value, Tensor) and value.numel() > 1:
            return value
    return None


def _local_name(evidence: Evidence, step: Step, tensor: Tensor, name: str) -> str | None:
    """Return the local variable that was probably meant: computed from the tokens, and never used."""
    steps = evidence.baseline.trace.steps
    unused = steps_from_tokens(steps) & unused_steps(steps)
    candidates = [
        earlier
        for earlier in steps[: step.index]
        if earlier.index in unused and earlier.name.isidentifier()
    ]
    names = [candidate.name for candidate in candidates]
    similar = difflib.get_close_matches(name, names, n=1, cutoff=SIMILARITY)
    same_shape = [it.name for it in candidates if it.shape[-2:] == tensor.shape[-2:]]
    return next(iter([*similar, *same_shape]), None)
