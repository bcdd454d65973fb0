"""Whether weights are weights: positive, and a row's sum 1."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import ancestors
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step
from heedful.shapes import times

NEAR = 1e-4
DIVISIONS = ("div", "div_", "truediv", "true_divide", "itruediv")


@probe("softmax-wrong-dim", "rows-not-normalised", "mask-after-softmax")
def softmax(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Sums each query's weights over the keys: the sum is 1 where any key is seen."""
    if not evidence.attentions and not any(
        "attention" in it.operation for it in evidence.baseline.trace
    ):
        yield Fact("attention", "none seen inside: judged by its outputs alone")
    for attention in evidence.attentions:
        if _is_divided_later(evidence.baseline, attention):
            continue
        finding = _wrong_softmax(attention) or _changed_after(attention)
        if finding is not None:
            yield finding
            return


def _is_divided_later(observation: Observation, attention: RecordedAttention) -> bool:
    """Whether exponentials weigh the values, and the context is divided by their sum: keys may come in blocks."""
    steps = observation.trace.steps
    exponentials = {it.index for it in attention.chain if it.operation in ("exp", "exp_", "exp2")}
    if attention.softmax_step is not None or not exponentials:
        return False
    for step in steps[attention.context_step.index + 1 :]:
        made_of = [ancestors(steps, steps[it.step]) for it in step.inputs if it.step is not None]
        if step.operation in DIVISIONS and any(
            attention.context_step.index in it for it in made_of
        ):
            return any(
                attention.context_step.index not in it and exponentials & it for it in made_of
            )
    return False


def _wrong_softmax(attention: RecordedAttention) -> Finding | None:
    """What is wrong as the softmax leaves it."""
    if _is_normalised(attention.weights, attention.empty_slot_weight) or has_sink(attention):
        return None
    _, Tq, Tk = attention.weights.shape
    step = attention.softmax_step
    whole = None if step is None else tensor_of(step)
    if step is not None and whole is not None:
        for axis in range(whole.dim()):
            sums = whole.sum(axis)
            sums = sums[sums.isfinite()]
            if (
                whole.shape[axis] > 1
                and len(sums)
                and torch.allclose(sums, torch.ones_like(sums), atol=NEAR)
            ):
                return Finding(
                    "softmax-wrong-dim",
                    "bug",
                    f"The weights sum to 1 along dimension {axis} of {times(whole.shape)}, not over the keys that a "
                    f"query sees: the first query's sum to {attention.weights[0, 0].sum():.3g}.",
                    f"{Tq} queries, {Tk} keys",
                    SourceLine.of(step),
                )
    at = step or next(
        (it for it in reversed(attention.chain) if it.operation != "dropout"),
        attention.context_step,
    )
    return Finding(
        "rows-not-normalised",
        "bug",
        f"The weights of a query sum to {_worst(attention.weights):.3g}, not to 1"
        + ("." if step is not None else ": scores reach the values without a softmax."),
        f"{Tq} queries, {Tk} keys",
        SourceLine.of(at),
    )


def _changed_after(attention: RecordedAttention) -> Finding | None:
    """What was done to right weights before they met the values."""
    if (
        _is_normalised(attention.applied_weights, attention.empty_slot_weight)
        or attention.softmax_step is None
        or not _is_normalised(attention.weights, attention.empty_slot_weight)
    ):
        return None
    hidden = (attention.applied_weights == 0) & (attention.weights != 0)
    after = [it for it in attention.chain if it.index > attention.softmax_step.index]
    step = next((it for it in after if _breaks(it, attention)), attention.context_step)
    name = "mask-after-softmax" if hidden.any() else "rows-not-normalised"
    what = (
        f"{int(hidden[0].sum())} weights are set to 0 after the softmax, so that a query's no longer sum to 1"
        if hidden.any()
        else "The weights are changed after the softmax, so that a query's no longer sum to 1"
    )
    return Finding(
        name,
        "bug",
        f"{what} (but to {_worst(attention.applied_weights):.3g}).",
        f"{attention.applied_weights.shape[1]} queries, {attention.applied_weights.shape[2]} keys",
        SourceLine.of(step),
    )


def _breaks(step: Step, attention: RecordedAttention) -> bool:
    value = tensor_of(step)
    if value is None or value.numel() != attention.applied_weights.numel():
        return False
    return not _is_normalised(value.reshape(attention.applied_weights.shape))


def has_sink(attention: RecordedAttention) -> bool:
    """Whether the softmax also counted a logit that belongs to no key."""
    value = None if attention.softmax_step is None else tensor_of(attention.softmax_step)
    return (
        value is not None
        and value.shape[-1] == attention.applied_weights.shape[-1] + 1
        and _is_normalised(value)
    )


def _is_normalised(weights: Tensor, outside: Tensor | float = 0.0) -> bool:
    """Whether rows sum to 1, with the weight on slots that hold no token: those with a weight at all, NaN aside."""
    sums = weights.sum(-1) + outside
    sums = sums[(weights != 0).any(-1) & sums.isfinite()]
    positive = (weights >= -NEAR)[weights.isfinite()].all()
    return bool((sums - 1).abs().le(NEAR).all()) and bool(positive)


def _worst(weights: Tensor) -> float:
    sums = weights.sum(-1).flatten()
    return sums[(sums - 1).abs().nan_to_num(0).argmax()].item()
