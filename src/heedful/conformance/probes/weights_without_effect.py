"""Probe: the output depends on the weights that a softmax makes of scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.differentiation import DifferentiationPoint
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import (
    PRODUCTS,
    SOFTMAXES,
    VIEWS,
)
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

NEGLIGIBLE = 1e-12
"""The largest share of the loss by which the output may change with a score that has no effect, in float64."""
MANY_TOKENS = 65
UNDECIDED = (1e-3, 0.999)
"""Between these, a weight would change with its score."""


@probe("attention-ignored")
def weights_without_effect(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Differentiate the output by the scores of each softmax. It must depend on those that a product reads.

    A sum of weights times a sum of values, as of two subscripts in place of one in an einsum, does not, and neither
    does a product that reads the scores themselves.
    """
    product = _product_of_scores(evidence)
    if product is not None:
        yield Finding(
            "attention-ignored",
            "bug",
            "This product reads the scores before the softmax, and no product reads the weights that it makes of them.",
            "",
            SourceLine.of(product),
            "Multiply the values by the softmax of the scores.",
        )
        return
    steps = [step for step in evidence.baseline.trace if step.operation in SOFTMAXES]
    without = _without_effect(evidence, evidence.inputs)
    if len(without) != len(steps):
        return
    for index, (step, has_none) in enumerate(zip(steps, without, strict=True)):
        reader = _product_reading(evidence, step) if has_none else None
        if reader is None or _acts_on_more_tokens(evidence, index, len(steps)):
            continue
        yield Finding(
            "attention-ignored",
            "bug",
            "Moving the scores of this attention does not change the output: whatever its weights are, their effects "
            "cancel.",
            f"T = {evidence.inputs.sizes[1]}",
            SourceLine.of(reader),
            "In an einsum, give the keys of the weights and those of the values the same letter.",
        )
        return


def _without_effect(evidence: Evidence, inputs: Inputs) -> list[bool]:
    """Return for each softmax of a run whether the output does not depend on its scores; nothing if that is unknown."""
    if evidence.subject.dtype != torch.float64:
        return []
    point = DifferentiationPoint.of(evidence, inputs)
    with (softmaxes := _Softmaxes()):
        loss = point.loss()
    if not loss.requires_grad or not loss.isfinite():
        return []
    if isinstance(attempt(lambda: point.subject.backward(loss)), Exception):
        return []  # the finding "gradient-wrong" reports it
    gradients = (it.grad for it in softmaxes.scores)
    least = NEGLIGIBLE * loss.abs()
    return [it is not None and it.numel() > 0 and bool(it.abs().max() <= least) for it in gradients]


def _acts_on_more_tokens(evidence: Evidence, index: int, count: int) -> bool:
    """Check whether a softmax has an effect on many tokens, as one of segments that the first ones do not see."""
    subject, B = evidence.subject, evidence.inputs.sizes[0]
    if subject.fixed_sizes is not None:
        return False
    inputs = subject.draw(B, min(subject.max_length or MANY_TOKENS, MANY_TOKENS))
    without = attempt(lambda: _without_effect(evidence, inputs))
    if isinstance(without, Exception) or len(without) != count:
        return False
    return not without[index]


class _Softmaxes(TorchFunctionMode):
    """Collect the scores of each softmax, and let them keep their gradients.

    Attributes:
        scores: The tensors that softmaxes were given, in the order of their calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scores: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in SOFTMAXES:
            scores = args[0] if args else kwargs["input"]
            if scores.requires_grad:
                scores.retain_grad()
            self.scores.append(scores)
        return func(*args, **(kwargs or {}))


def _product_of_scores(evidence: Evidence) -> Step | None:
    """Return a product that reads the scores which a softmax reads too, if no step but views reads its weights."""
    steps = evidence.baseline.trace.steps
    for softmax in (step for step in steps if step.operation in SOFTMAXES):
        scores = softmax.inputs[0].step if softmax.inputs else None
        if scores is None or any(
            it.operation not in VIEWS for it in _readers(steps, softmax.index)
        ):
            continue
        readers = (it for it in _readers(steps, scores) if it.operation in PRODUCTS)
        product = next((it for it in readers if it.index > softmax.index), None)
        if product is not None:
            return product
    return None


def _product_reading(evidence: Evidence, softmax: Step) -> Step | None:
    """Return the first product that reads the weights of a softmax, of which some are undecided; None without one."""
    weights = softmax.value
    least, most = UNDECIDED
    if not isinstance(weights, Tensor) or not ((weights > least) & (weights < most)).any():
        return None
    readers = _readers(evidence.baseline.trace.steps, softmax.index)
    return next((step for step in readers if step.operation in PRODUCTS), None)


def _readers(steps: Sequence[Step], index: int) -> Iterator[Step]:
    """Yield the steps that read the result of a step, a view of it, or what dropout leaves of it, in order."""
    passed = {index}
    for step in steps[index + 1 :]:
        if any(source.step in passed for source in step.inputs):
            yield step
            if step.operation in (*VIEWS, "dropout"):
                passed.add(step.index)
