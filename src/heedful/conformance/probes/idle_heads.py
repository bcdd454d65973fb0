"""Probe: the number of heads that a module keeps has an effect."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from heedful.conformance.calling import names
from heedful.conformance.calling.constructor_parameters import single_heads
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.head_merge import head_merge
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import VIEWS, steps_from_projection
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding


@probe("heads-mixed-split")
def idle_heads(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Change the number of heads of a module whose attention has one. The output must change, or the call fail."""
    module, B = evidence.subject.module, evidence.inputs.sizes[0]
    for path, part in () if module is None else module.named_modules():
        attentions = [it for it in evidence.attentions if it.scores_step.module == path]
        several = [number for name, number in _numbers(part) if name in names.HEADS and number > 1]
        if not attentions or not several or any(len(it.query) != B for it in attentions):
            continue
        if len(attentions) > 1 or single_heads(type(part), {}):
            continue  # what has one head by default may have no other number
        if _has_effect(evidence, path, part):
            continue
        if any(isinstance(it, Finding) for it in head_merge.ask(evidence)):
            return  # heads that are merged although nothing has split them
        yield Finding(
            "heads-mixed-split",
            "bug",
            f"The module has {several[0]} heads, but its attention has one: the features are never split, and no other "
            "number of heads changes the output.",
            "",
            _line_without_split(evidence, attentions[0]),
            "Split the features into heads before the scores are computed: x.view(B, T, H, D).transpose(1, 2).",
        )
        return


def _line_without_split(evidence: Evidence, attention: RecordedAttention) -> SourceLine | None:
    """Return the line that rearranges the queries, or else the one that makes the scores."""
    path = steps_from_projection(evidence.baseline, attention.query_source)
    views = (step for step in path if step.operation in VIEWS)
    return SourceLine.of(next(views, attention.scores_step))


def _numbers(module: nn.Module) -> list[tuple[str, int]]:
    """Return the numbers of heads and of features of a head that a module keeps, by their names."""
    kept = vars(module).items()
    sizes = (*names.HEADS, *names.HEAD_SIZES)
    return [(name, number) for name, number in kept if name in sizes and type(number) is int]


def _has_effect(evidence: Evidence, path: str, module: nn.Module) -> bool:
    """Check whether another number of heads, or of features of a head, changes the output or makes the call fail."""
    for name, number in _numbers(module):
        changed = evidence.subject.fresh()
        assert changed.module is not None
        setattr(changed.module.get_submodule(path), name, number + 1)
        output = attempt(lambda changed=changed: changed.run(evidence.inputs).detach())
        if (
            not isinstance(output, Tensor)
            or evidence.differs(output, evidence.baseline.output).any()
        ):
            return True
    return False
