"""Whether every projection of an attention reaches its output."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import (
    ancestors,
    is_projection,
    steps_from_projection,
    unused_steps,
)
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.source import SourceLine, attribute_definition, last_return
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step

ROLES = {
    "query": ("query", "queries", "q", "wq", "xq", "toq"),
    "key": ("key", "keys", "k", "wk", "xk", "tok"),
    "value": ("value", "values", "v", "wv", "xv", "tov"),
    "output": ("out", "output", "o", "wo", "proj", "dense", "toout"),
}
PIECES = ("getitem", "split", "chunk", "unbind", "tensor_split", "unsafe_chunk", "select", "narrow")


@probe("projection-unused")
def projections(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Changes the parameters that no used step depends on: the output stays, though their module is at work."""
    steps = evidence.baseline.trace.steps
    lost = unused_steps(steps)
    alive = {
        it.name
        for step in steps
        if step.index not in lost
        for it in step.inputs
        if it.kind == "parameter"
    }
    for name in _idle(evidence, alive):
        yield Finding(
            "projection-unused",
            "bug",
            f"Adding 1 to {name} leaves the output as it is: nothing that is computed from it is used.",
            "",
            _in_its_stead(evidence, name, lost),
        )
        return
    for attention in evidence.attentions:
        twice = _read_twice(evidence, attention)
        piece = None if twice is None else _lost_piece(evidence, lost)
        if twice is not None and piece is not None:
            yield Finding(
                "projection-unused",
                "bug",
                f"{piece.name!r} is split off the projection and used by nothing; {twice[0]!r} is used twice.",
                "",
                SourceLine.of(twice[1]),
            )
            return


def _idle(evidence: Evidence, alive: set[str]) -> Iterator[str]:
    """Weights of projections that their parent, at work otherwise, does without."""
    subject = evidence.subject
    if subject.module is None:
        return
    weights = {name: it.shape for name, it in subject.module.named_parameters() if it.dim() >= 2}
    at_work = {_parent(name) for name in alive}
    filled = {(_parent(it), _role(_own_name(it)), weights[it]) for it in alive & weights.keys()}
    for name, shape in weights.items():
        role = _role(_own_name(name))
        idle = name not in alive and _parent(name) in at_work
        in_vain = role is not None and (_parent(name), role, shape) not in filled
        if not idle or not (in_vain or _has_a_busy_sibling(evidence, name, shape)):
            continue
        changed = subject.fresh()
        assert changed.module is not None
        with torch.no_grad():
            changed.module.get_parameter(name).add_(1.0)
        if not differing_entries(
            changed.run(evidence.inputs).detach(), evidence.baseline.output
        ).any():
            yield name


def _has_a_busy_sibling(evidence: Evidence, name: str, shape: torch.Size) -> bool:
    """Whether another one of its kind, in a list of them, is used twice."""
    module = evidence.subject.module
    assert module is not None
    if not _own_name(name).isdigit():
        return False
    kin = [
        it
        for it, other in module.named_parameters()
        if _parent(it) == _parent(name) and other.shape == shape
    ]
    uses = [sum(_reads(step, it) for step in evidence.baseline.trace) for it in kin]
    return max(uses) > 1


def _in_its_stead(evidence: Evidence, name: str, lost: set[int]) -> SourceLine | None:
    """The line that uses something else where a projection should be used."""
    steps = evidence.baseline.trace.steps
    role = _role(_own_name(name))
    for attention in evidence.attentions:
        twice = _read_twice(evidence, attention)
        if twice is not None and any(_reads(steps[it], name) for it in lost):
            return SourceLine.of(twice[1])
    uses: dict[str, list[Step]] = {}
    for step in steps:
        for source in step.inputs:
            if source.kind == "parameter" and _parent(source.name) == _parent(name):
                uses.setdefault(source.name, []).append(step)
    for user in uses.values():
        if len(user) > 1:
            return SourceLine.of(next((it for it in user if _role(it.name) == role), user[-1]))
    computed = next((it for it in steps if it.index in lost and _reads(it, name)), None)
    if computed is None and role == "output":
        assert evidence.subject.module is not None
        return last_return(evidence.subject.module.get_submodule(_parent(name)).forward)
    return SourceLine.of(computed) or attribute_definition(
        evidence.subject.module, name.removesuffix(".weight")
    )


def _read_twice(evidence: Evidence, attention: RecordedAttention) -> tuple[str, Step] | None:
    """A tensor that a attention takes in two roles, and the step that takes it the second time."""

    def same(one: Source, other: Source) -> bool:
        return _piece(steps_from_projection(evidence.baseline, one)) == _piece(
            steps_from_projection(evidence.baseline, other)
        )

    if same(attention.query_source, attention.key_source):
        return attention.query_source.name, attention.scores_step
    if same(attention.value_source, attention.query_source) or same(
        attention.value_source, attention.key_source
    ):
        return attention.value_source.name, attention.context_step
    return None


def _piece(way: list[Step]) -> int | None:
    """The step at which what a way leads to became a tensor of its own: a projection, or a piece of a packed one."""
    pieces = [it.index for it in way if it.operation in PIECES]
    return max([*pieces, *(it.index for it in way if is_projection(it))], default=None)


def _lost_piece(evidence: Evidence, lost: set[int]) -> Step | None:
    """A piece of a packed projection that comes to nothing."""
    steps = evidence.baseline.trace.steps
    for step in steps:
        is_piece = step.index in lost and step.operation in PIECES
        if is_piece and any(is_projection(steps[it]) for it in ancestors(steps, step)):
            return step
    return None


def _reads(step: Step, parameter: str) -> bool:
    return any(it.kind == "parameter" and it.name == parameter for it in step.inputs)


def _own_name(parameter: str) -> str:
    """ "W_query" for "heads.0.W_query.weight"."""
    return parameter.removesuffix(".weight").rpartition(".")[2]


def _parent(parameter: str) -> str:
    """The module that a projection is part of: "heads.0" for "heads.0.W_query.weight"."""
    return parameter.removesuffix(".weight").removesuffix(".bias").rpartition(".")[0]


def _role(name: str) -> str | None:
    words = {it for it in re.split(r"[^a-z]+", name.lower()) if it}
    words.add(re.sub(r"[^a-z]", "", name.lower()))
    return next((role for role, known in ROLES.items() if words & set(known)), None)
