"""Find out why padding has a part in a softmax: a weak fill or a late mask, also where no queries meet keys."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from heedful.conformance.evidence.masking import MaskDefect
from heedful.conformance.evidence.token_weights import TokenWeights, find_token_weights
from heedful.conformance.probes.mask_fill import SUFFICIENT_FILL
from heedful.conformance.recording.dataflow import VIEWS
from heedful.conformance.recording.observation import Observation
from heedful.conformance.recording.source import SourceLine
from heedful.observation import Step

AFTERWARDS = "Padded keys take part in the softmax, and their weights are masked afterwards."
EQUAL_LOWERING = 1e-6  # the largest standard deviation of a change that counts as one number
MIN_LOWERING = 1e-3
ADDITIONS = ("add", "iadd", "add_", "sub", "isub", "sub_")
MULTIPLICATIONS = ("mul", "imul", "mul_", "masked_fill", "masked_fill_", "where")


def weighting_cause(
    padded: Observation, unpadded: Observation, keep: Tensor, b: int
) -> MaskDefect | None:
    """Return why padding has a part in a softmax over the tokens without queries; None if no such reason is found.

    Args:
        padded: A recorded run on the padded batch.
        unpadded: One on the same tokens, none of which is padding.
        keep: (T,) Boolean, which tokens of a sequence are real.
        b: The sequence.
    """
    pairs = zip(find_token_weights(padded), find_token_weights(unpadded), strict=False)
    for weights, before in pairs:
        reason = describe_weak_fill(weights.logits[b], before.logits[b], weights.weights[b], keep)
        if reason:
            line = _line_of_fill(padded, weights, keep, b)
            return MaskDefect("mask-fill-too-small", reason, line)
        step = _step_hiding_weights(weights, keep, b)
        if step is not None:
            return MaskDefect("mask-after-softmax", AFTERWARDS, SourceLine.of(step))
    return None


def _line_of_fill(
    padded: Observation, weights: TokenWeights, keep: Tensor, b: int
) -> SourceLine | None:
    """Return the line at which the scores of padded tokens get their final value."""
    final = weights.logits[b][:, ~keep]
    for step in weights.scoring:
        scores = weights.laid_out(step)
        if scores is not None and scores[b][:, ~keep].equal(final):
            return SourceLine.of(scaling_step(padded, weights.scoring, step) or step)
    return None


def _step_hiding_weights(weights: TokenWeights, keep: Tensor, b: int) -> Step | None:
    """Return the first step after a softmax that sets weights of padded tokens to 0, which the softmax gave them."""
    if not weights.weights[b][:, ~keep].any():
        return None
    for step in weights.weighting:
        value = weights.laid_out(step)
        if value is not None and is_hidden_weight(value[b][:, ~keep]):
            return step
    return None


def is_hidden_weight(weights: Tensor) -> bool:
    """Check whether all weights are 0, or so low that they are fills which were meant for scores."""
    return not weights.any() or bool((weights < -1).all())


def describe_weak_fill(logits: Tensor, before: Tensor, weights: Tensor, keep: Tensor) -> str:
    """Describe a fill that leaves padded keys some weight; return "" if that is not what a mask does.

    Args:
        logits: (…, T), the scores with padding.
        before: (…, T), the same without padding.
        weights: (…, T), the softmax of `logits`.
        keep: (T,) Boolean, which keys are real.
    """
    padded = logits[..., ~keep]
    if not (weights[..., ~keep] > 0).any():
        return ""
    fill = padded.flatten()[0] + 0.0  # not −0
    whole_rows = bool((logits == fill).all())  # queries that the mask hides, and no keys
    if (padded == fill).all() and fill > SUFFICIENT_FILL and not whole_rows:
        return f"The scores of padded keys are set to {fill:.3g}, not to −∞."
    change = logits - before
    lowering = change[..., keep].mean() - change[..., ~keep].mean()
    spread = max(change[..., keys].std().item() for keys in (keep, ~keep))
    if spread < EQUAL_LOWERING and MIN_LOWERING < lowering < math.inf:
        return f"The scores of padded keys are lowered by only {lowering:.3g}."
    return ""


def scaling_step(padded: Observation, links: Sequence[Step], step: Step) -> Step | None:
    """Return the step that multiplies a mask by a number before a link of the scores' chain adds it to them."""
    if step.operation not in ADDITIONS:
        return None
    chain = {link.index for link in links}
    pending = [source.step for source in step.inputs if source.step not in chain]
    while pending:
        index = pending.pop()
        if index is None or index in chain:
            continue
        made = padded.trace[index]
        if made.operation in MULTIPLICATIONS:
            return made
        if made.operation in VIEWS:
            pending += [source.step for source in made.inputs]
    return None
