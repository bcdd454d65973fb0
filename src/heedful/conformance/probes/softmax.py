"""Whether weights are weights: positive, and a row's sum 1."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heedful.conformance.changes import ancestors
from heedful.conformance.cores import Core
from heedful.conformance.dataflow import tensor
from heedful.conformance.evidence import Evidence
from heedful.conformance.finding import Fact, Finding, Place
from heedful.conformance.inputs import Observation
from heedful.conformance.probing import probe
from heedful.observation import Step
from heedful.shapes import times

NEAR = 1e-4
DIVISIONS = ("div", "div_", "truediv", "true_divide", "itruediv")


@probe("softmax-wrong-dim", "rows-not-normalised", "mask-after-softmax")
def softmax(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Sums each query's weights over the keys: the sum is 1 where any key is seen."""
    if not evidence.cores and not any("attention" in it.operation for it in evidence.base.trace):
        yield Fact("attention", "none seen inside: judged by its outputs alone")
    for core in evidence.cores:
        if _is_divided_later(evidence.base, core):
            continue
        finding = _wrong_softmax(core) or _changed_after(core)
        if finding is not None:
            yield finding
            return


def _is_divided_later(observation: Observation, core: Core) -> bool:
    """Whether exponentials weigh the values, and the context is divided by their sum: keys may come in blocks."""
    steps = observation.trace.steps
    exponentials = {it.index for it in core.chain if it.operation in ("exp", "exp_", "exp2")}
    if core.softmax_step is not None or not exponentials:
        return False
    for step in steps[core.context_step.index + 1 :]:
        made_of = [ancestors(steps, steps[it.step]) for it in step.inputs if it.step is not None]
        if step.operation in DIVISIONS and any(core.context_step.index in it for it in made_of):
            return any(core.context_step.index not in it and exponentials & it for it in made_of)
    return False


def _wrong_softmax(core: Core) -> Finding | None:
    """What is wrong as the softmax leaves it."""
    if _is_normalised(core.weights, core.outside) or has_sink(core):
        return None
    _, Tq, Tk = core.weights.shape
    step = core.softmax_step
    whole = None if step is None else tensor(step)
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
                    f"query sees: the first query's sum to {core.weights[0, 0].sum():.3g}.",
                    f"{Tq} queries, {Tk} keys",
                    Place.of(step),
                )
    at = step or next(
        (it for it in reversed(core.chain) if it.operation != "dropout"), core.context_step
    )
    return Finding(
        "rows-not-normalised",
        "bug",
        f"The weights of a query sum to {_worst(core.weights):.3g}, not to 1"
        + ("." if step is not None else ": scores reach the values without a softmax."),
        f"{Tq} queries, {Tk} keys",
        Place.of(at),
    )


def _changed_after(core: Core) -> Finding | None:
    """What was done to right weights before they met the values."""
    if (
        _is_normalised(core.used, core.outside)
        or core.softmax_step is None
        or not _is_normalised(core.weights, core.outside)
    ):
        return None
    hidden = (core.used == 0) & (core.weights != 0)
    after = [it for it in core.chain if it.index > core.softmax_step.index]
    step = next((it for it in after if _breaks(it, core)), core.context_step)
    name = "mask-after-softmax" if hidden.any() else "rows-not-normalised"
    what = (
        f"{int(hidden[0].sum())} weights are set to 0 after the softmax, so that a query's no longer sum to 1"
        if hidden.any()
        else "The weights are changed after the softmax, so that a query's no longer sum to 1"
    )
    return Finding(
        name,
        "bug",
        f"{what} (but to {_worst(core.used):.3g}).",
        f"{core.used.shape[1]} queries, {core.used.shape[2]} keys",
        Place.of(step),
    )


def _breaks(step: Step, core: Core) -> bool:
    value = tensor(step)
    if value is None or value.numel() != core.used.numel():
        return False
    return not _is_normalised(value.reshape(core.used.shape))


def has_sink(core: Core) -> bool:
    """Whether the softmax also counted a logit that belongs to no key."""
    value = None if core.softmax_step is None else tensor(core.softmax_step)
    return (
        value is not None and value.shape[-1] == core.used.shape[-1] + 1 and _is_normalised(value)
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
