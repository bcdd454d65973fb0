"""The chain of steps that turns scores into weights, and the softmax in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from heedful.conformance.recording.dataflow import (
    DIVISIONS,
    EXPONENTIALS,
    SOFTMAXES,
    ancestors,
    read_by,
)
from heedful.conformance.recording.observation import Observation, value_of
from heedful.observation import Source, Step

CAPS: tuple[str, ...] = ("tanh", "tanh_")


def chain_between(observation: Observation, scores: Step, weights: Source) -> tuple[Step, ...]:
    """Return the steps through which the weights depend on the scores, including both ends."""
    steps = observation.trace.steps
    assert weights.step is not None
    chain = {scores.index}
    for index in sorted(ancestors(steps, steps[weights.step])):
        if any(source.step in chain for source in read_by(steps[index])):
            chain.add(index)
    return tuple(steps[index] for index in sorted(chain))


def softmax_in(chain: tuple[Step, ...]) -> Step | None:
    """Return the step that normalises the scores: a softmax, or the division of exponentials by their sum.

    An exponential of scores without the logarithm of this sum, exp(scores - logsumexp(scores)), needs no division.
    """
    for step in chain:
        if step.operation in SOFTMAXES:
            return step
    made_by = {step.index: step for step in chain}
    exponential_met = False
    for step in chain:
        if step.operation in EXPONENTIALS and _is_less_logarithm(step, made_by):
            return step
        exponential_met |= step.operation in (*EXPONENTIALS, "logsumexp")
        if exponential_met and step.operation in DIVISIONS:
            return step
    return None


def _is_less_logarithm(exponential: Step, made_by: Mapping[int, Step]) -> bool:
    """Check whether the input of an exponential is a difference whose second operand is a logarithm of a sum."""
    differences = _makers(exponential.inputs, made_by)
    subtracted = (
        maker
        for it in differences
        if it.operation == "sub"
        for maker in _makers(it.inputs[1:], made_by)
    )
    return any(it.operation == "logsumexp" for it in subtracted)


def _makers(sources: Iterable[Source], made_by: Mapping[int, Step]) -> list[Step]:
    """Return the steps of a chain that made the operands of another step."""
    indices = (it.step for it in sources if it.step is not None)
    return [made_by[index] for index in indices if index in made_by]


def softmax_input(observation: Observation, softmax: Step, chain: tuple[Step, ...]) -> object:
    """Return the input of a softmax; if the target writes it out, the input of its exponential."""
    steps = {step.index: step for step in chain}
    step = softmax
    while step.operation not in (*SOFTMAXES, *EXPONENTIALS):
        step = next(steps[source.step] for source in step.inputs if source.step in steps)
    return value_of(observation, next(source for source in step.inputs if source.step in steps))
