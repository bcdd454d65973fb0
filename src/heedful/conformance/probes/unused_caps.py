"""Probe: scores are capped if a module holds a soft cap for them (Gemma Team 2024, section 2)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torch import nn

from heedful.conformance.calling import names
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.chain import CAPS
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.source import SourceLine, names_in, parsed_file
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step


@probe("weights-wrong")
def unused_caps(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Search for a soft cap that a module holds, while no step caps the scores of any attention."""
    caps = list(_caps(evidence.subject.module))
    softmaxes = [step for it in evidence.attentions if (step := _uncapped_softmax(it)) is not None]
    if caps and softmaxes and len(softmaxes) == len(evidence.attentions):
        name, cap = caps[0]
        yield Finding(
            "weights-wrong",
            "bug",
            f"{name} = {cap:g} is a soft cap, but no step caps the scores before the softmax.",
            "",
            _condition_of_cap(softmaxes[0]) or SourceLine.of(softmaxes[0]),
            "Cap the scores before the mask: scores = cap * torch.tanh(scores / cap).",
        )


def _caps(module: nn.Module | None) -> Iterator[tuple[str, float]]:
    """Yield the names and numbers of a module's soft caps that are switched on."""
    for part in () if module is None else module.modules():
        for name, value in vars(part).items():
            if name in names.SOFT_CAPS and type(value) in (int, float) and value > 0:
                yield name, value


def _uncapped_softmax(attention: RecordedAttention) -> Step | None:
    """Return the softmax of an attention whose scores nothing caps."""
    capped = any(step.operation in CAPS for step in attention.chain)
    return None if capped else attention.softmax_step


def _condition_of_cap(softmax: Step) -> SourceLine | None:
    """Return the line of the condition under which the file of a softmax calls a function that caps."""
    source = parsed_file(softmax.file or "")
    for statement in () if source is None else source.statements():
        if source is not None and isinstance(statement, ast.If):
            called = names_in(it.func for it in ast.walk(statement) if isinstance(it, ast.Call))
            if "tanh" in called or any("cap" in name.lower() for name in called):
                return source.line_of(statement)
    return None
