"""Check that the output depends on the attention."""

from __future__ import annotations

from collections.abc import Iterator

from heedful.conformance.evidence.axes import letters_in
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.assignments import last_return
from heedful.conformance.recording.call_sites import line_overwriting_result
from heedful.conformance.recording.dataflow import (
    PRODUCTS,
    SOFTMAXES,
    ancestors,
    has_single_key,
    is_projection,
    unused_steps,
)
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.skipped_lines import returned_early
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.recording.target_source import own_functions_of
from heedful.conformance.reporting.finding import ANY_CALL, Fact, Finding
from heedful.observation import Step


@probe("attention-ignored")
def token_mixing(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Change each token in turn, and check that outputs of other tokens change, too."""
    _, T = evidence.inputs.sizes
    influence = evidence.influence[0, :, 0]
    if not evidence.baseline.output.isfinite().all():  # which is another finding
        return
    apart = _step_summing_apart(evidence)
    if apart is not None:
        proof = (
            f"{apart.arguments[0]!r} sums each operand over a letter that the other one lacks: the result is the "
            "product of two sums, and no weight meets its own value."
        )
        remedy = "Give the keys of the weights and the values the same letter."
        yield Finding("attention-ignored", "bug", proof, ANY_CALL, SourceLine.of(apart), remedy)
        return
    unused = unused_steps(evidence.baseline.trace.steps)
    if T < 2 or evidence.mixes_tokens:
        yield from _discarded(evidence, unused)
        return
    steps = evidence.baseline.trace.steps
    projected = set[int]().union(
        *(ancestors(steps, steps[index]) for index in unused if is_projection(steps[index]))
    )  # what is wrong then is that the projection is not used
    ignored = [
        it for it in evidence.attentions if it.context_step.index in unused.difference(projected)
    ]
    if evidence.attentions and all(it.key.shape[1] == 1 for it in evidence.attentions):
        return  # the weight of a single key is 1, whatever the query is
    if not influence.any() and has_single_key(evidence.baseline.trace):
        return
    if not influence.any() and returned_early(steps):
        return  # with so few tokens, or without an argument, nothing is computed
    if not influence.any():
        proof = "Changing any token does not change the output."
    elif _returns_tokens(evidence):
        proof = "The output is the input: no output depends on another token."
        computed = any(it.operation in SOFTMAXES for it in steps) or evidence.attentions
        if not unused or not computed:  # an argument may be missing, or another one be needed
            yield Finding("attention-ignored", "suspicious", proof, f"T = {T}")
            return
    elif ignored:
        proof = "Nothing uses the context of the attention, and no output depends on another token."
    elif (returned := _return_beside(evidence, unused)) is not None:
        proof = "Nothing uses the sum of the tokens that the weights weigh, and no output depends on another token."
        yield Finding("attention-ignored", "bug", proof, f"T = {T}", returned)
        return
    else:
        return
    place = _dropped(evidence, unused) or last_return(evidence.subject.target.forward)
    if ignored and ignored[-1].context_step.name.startswith("output"):
        context = ignored[-1].context_step
        overwriting = line_overwriting_result(evidence.subject.module, context)
        place = overwriting or SourceLine.of(context)
    is_guess = evidence.subject.convention.guessed and not influence.any() and not ignored
    level = "suspicious" if is_guess else "bug"  # what was taken for the tokens may be none
    yield Finding("attention-ignored", level, proof, f"T = {T}", place)


def _step_summing_apart(evidence: Evidence) -> Step | None:
    """Return the einsum that takes the weights of a softmax and sums both its operands apart; None if none does."""
    steps = evidence.baseline.trace.steps
    weights = {it.index for it in steps if it.operation in SOFTMAXES}
    apart = (it for it in steps if _sums_apart(it))
    return next((it for it in apart if ancestors(steps, it) & weights), None)


def _sums_apart(step: Step) -> bool:
    """Check whether an einsum of two operands sums both over a letter of their own."""
    equation = step.arguments[0] if step.operation == "einsum" and step.arguments else None
    letters = letters_in(equation) if isinstance(equation, str) else None
    if letters is None:
        return False
    left, right, result = map(set, letters)
    return bool(left - right - result) and bool(right - left - result)


def _discarded(evidence: Evidence, unused: set[int]) -> Iterator[Finding]:
    """Report that the one row of a pooled result is computed from something else than what the attention returns.

    Weights without queries and keys, as of a perceptron for each token, are lost with all projections.
    """
    pooled, attentions = evidence.subject.convention.pooled, evidence.attentions
    projections = {it.index for it in evidence.baseline.trace if is_projection(it)}
    if pooled and not attentions and projections and projections <= unused:
        last = evidence.baseline.trace[max(unused)]
        proof = "Nothing uses the tokens as they are weighed: the output depends on no projection."
        place = line_overwriting_result(evidence.subject.module, last) or SourceLine.of(last)
        yield Finding("attention-ignored", "bug", proof, f"T = {evidence.inputs.sizes[1]}", place)
    wasted = [it for it in attentions if {it.context_step.index, it.chain[-1].index} <= unused]
    if pooled and attentions and len(wasted) == len(attentions):
        proof = (
            "Nothing uses the weights of the attention, nor the sum of the tokens that they weigh."
        )
        place = last_return(evidence.subject.target.forward)
        yield Finding("attention-ignored", "bug", proof, f"T = {evidence.inputs.sizes[1]}", place)


def _dropped(evidence: Evidence, unused: set[int]) -> SourceLine | None:
    """Return the line of the last step that is computed from weights and that nothing uses.

    None if an attention of queries and keys is found: its context would be returned.
    """
    last = _last_of_weights(evidence, unused)
    return None if evidence.attentions else SourceLine.of(last)


def _last_of_weights(evidence: Evidence, unused: set[int]) -> Step | None:
    """Return the last step that is computed from weights and that nothing uses."""
    steps = evidence.baseline.trace.steps
    weights = {step.index for step in steps if step.operation in SOFTMAXES}
    last = max((it for it in unused if ancestors(steps, steps[it]) & weights), default=None)
    return None if last is None else steps[last]


def _return_beside(evidence: Evidence, unused: set[int]) -> SourceLine | None:
    """Return the last line on which the function that weighs the tokens in vain returns; None if there is none."""
    last = _last_of_weights(evidence, unused)
    functions = () if last is None else own_functions_of(evidence.subject.target.callee)
    if last is None or last.operation not in PRODUCTS:
        return None
    own = (it for it in functions if it.__code__.co_qualname == last.function)
    return next((line for it in own if (line := last_return(it)) is not None), None)


def _returns_tokens(evidence: Evidence) -> bool:
    """Check whether the output equals one of the inputs."""
    output = evidence.baseline.output
    return any(
        tokens.shape == output.shape
        and not differing_entries(tokens.to(output.dtype), output).any()
        for tokens in evidence.inputs.arguments.values()
    )
