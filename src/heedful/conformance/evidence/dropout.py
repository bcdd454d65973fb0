"""The steps of a run that drop entries at random."""

from __future__ import annotations

import torch

from heedful.conformance.evidence.fused import FUSED, fused_arguments
from heedful.conformance.recording.dataflow import steps_from_tokens
from heedful.conformance.recording.differences import (
    changed_entries,
    differing_entries,
    same_steps,
)
from heedful.conformance.recording.observation import Observation, tensor_of, value_of
from heedful.observation import Step


def dropout_steps(first: Observation, second: Observation) -> list[Step]:
    """Return the steps at which randomness enters what is computed from the tokens.

    Args:
        first: a run; its steps are returned.
        second: a run on the same tokens with other random numbers.
    """
    if not same_steps(first, second):
        return []
    from_tokens = steps_from_tokens(first.trace.steps)
    random: set[int] = set()
    dropping = []
    for step in first.trace:
        changed = changed_entries(first, second, step)
        if changed is None or not changed.any() or step.index not in from_tokens:
            continue
        reads_random = any(source.step in random for source in step.inputs)
        random.add(step.index)
        starts = not reads_random and not _is_noise(step, first, second)
        if starts or _has_dropped(step, first) or _drops_by_hand(step, first, second):
            dropping.append(step)
    return dropping


def _is_noise(step: Step, first: Observation, second: Observation) -> bool:
    """Check whether a step sets no entry to 0 in two runs, as the noise of Gumbel's softmax, which drops nothing."""
    if dropout_probability(step) is not None:
        return False
    values = [tensor_of(run.trace[step.index]) for run in (first, second)]
    return all(value is not None and bool(value.all()) for value in values)


def dropout_probability(step: Step) -> float | None:
    """Return the probability with which one of torch's own functions drops an entry; None for other steps."""
    match step.operation:
        case "dropout" | "dropout_" | "feature_dropout" | "alpha_dropout" | "native_dropout":
            arguments = dict(zip(("input", "p"), step.arguments, strict=False))
            p = (arguments | dict(step.keywords)).get("p", 0.5)
        case "multi_head_attention_forward":
            positional = step.arguments[10] if len(step.arguments) > 10 else 0.0
            p = step.keywords.get("dropout_p", positional)
        case operation if operation == FUSED:
            p = fused_arguments(step)["dropout_p"]
        case _:
            return None
    return p if isinstance(p, float | int) else None


def _has_dropped(step: Step, observation: Observation) -> bool:
    """Check whether one of torch's own functions with a dropout probability has changed its input."""
    if not dropout_probability(step):
        return False
    before, after = value_of(observation, step.inputs[0]), tensor_of(step)
    if before is None or after is None or before.shape != after.shape:
        return True
    return bool(differing_entries(before, after).any())


def _drops_by_hand(step: Step, first: Observation, second: Observation) -> bool:
    """Check whether a step sets different entries of a non-negative tensor to 0 in two runs."""
    dropped = []
    for run in (first, second):
        after = tensor_of(run.trace[step.index])
        inputs = (value_of(run, source) for source in step.inputs)
        before = next((tensor for tensor in inputs if tensor is not None), None)
        if after is None or before is None or before.shape != after.shape or (before < 0).any():
            return False
        dropped.append((after == 0) & (before > 0))
    return not torch.equal(*dropped)
