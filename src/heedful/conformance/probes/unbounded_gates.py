"""Probes: a gate, and a map of channel or spatial attention, is a number between 0 and 1, and may come near both."""

from __future__ import annotations

import re
from collections.abc import Iterator

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import (
    MULTIPLICATIONS,
    PROJECTIONS,
    ancestors,
    behind_views,
    operands_of,
)
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.recording.target_source import prose_about
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step

WEIGHTING: re.Pattern[str] = re.compile("softmax|attention")
"""Operations on the way to the context of an attention."""
POOLING: re.Pattern[str] = re.compile(r"^(mean|a?max|a?min|(adaptive_)?(avg|max)_pool\d)")
"""Operations that make statistics of channels or pixels, from which maps are made."""
OF_MAPS: re.Pattern[str] = re.compile(
    r"(channel|spatial)[ _-]?(attention|gate)|cbam|squeeze.{0,5}excit"
)


@probe("context-wrong", "weights-wrong")
def unbounded_gates(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Search for products with the raw result of a layer: one called a gate, or one of pooled channels or pixels."""
    steps = evidence.baseline.trace.steps
    speaks_of_maps = OF_MAPS.search(prose_about(evidence.subject.callee)) is not None
    for step in (it for it in steps if it.operation in MULTIPLICATIONS):
        operands = operands_of(step)
        for gate, gated in (operands, operands[::-1]) if len(operands) == 2 else ():
            layer = _layer_behind(steps, gate)
            if layer is None:
                continue
            path = _path_of(layer)
            of_context = "gat" in path.rpartition(".")[2].lower() and _is_context(steps, gated)
            if of_context or (speaks_of_maps and _is_map(steps, layer, gated)):
                yield Finding(
                    "context-wrong" if of_context else "weights-wrong",
                    "bug",
                    f"The {'context' if of_context else 'input'} is multiplied by what {path} returns, which is any "
                    "number, also a negative one, and no share between 0 and 1.",
                    "",
                    SourceLine.of(step),
                    "Apply a sigmoid to it first.",
                )
                return


@probe("weights-wrong")
def doubled_sigmoid(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Search for the sigmoid of a sigmoid."""
    steps = evidence.baseline.trace.steps
    for step in (it for it in steps if it.operation == "sigmoid"):
        source = behind_views(steps, step.inputs[0])
        if source.step is not None and steps[source.step].operation == "sigmoid":
            yield Finding(
                "weights-wrong",
                "bug",
                "The sigmoid is applied to the result of a sigmoid, so that all weights are between 0.5 and 0.731.",
                "",
                SourceLine.of(step),
                "Apply it once.",
            )
            return


def _layer_behind(steps: tuple[Step, ...], source: Source) -> Step | None:
    """Return the layer whose result an operand is; None if something else follows the layer."""
    source = behind_views(steps, source)
    step = None if source.step is None else steps[source.step]
    return step if step is not None and step.operation in PROJECTIONS and _path_of(step) else None


def _path_of(layer: Step) -> str:
    """Return the path of the module whose parameters a layer reads; "" if it reads none."""
    names = (it.name for it in layer.inputs if it.kind == "parameter")
    return next(names, "").rpartition(".")[0]


def _is_context(steps: tuple[Step, ...], source: Source) -> bool:
    """Check whether a tensor is the context of an attention, and no later layer has projected it."""
    pending = [] if source.step is None else [source.step]
    while pending:
        step = steps[pending.pop()]
        if WEIGHTING.search(step.operation):
            return True
        if step.operation not in PROJECTIONS:
            pending += [it.step for it in step.inputs if it.step is not None]
    return False


def _is_map(steps: tuple[Step, ...], layer: Step, gated: Source) -> bool:
    """Check whether a layer makes its result from statistics of what the result multiplies."""
    gated, behind = behind_views(steps, gated), [steps[it] for it in ancestors(steps, layer)]
    reads = {behind_views(steps, source) for it in behind for source in it.inputs}
    return gated in reads and any(POOLING.search(it.operation) for it in behind)
