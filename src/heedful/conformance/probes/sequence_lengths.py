"""Check that the number of tokens does not change what each output depends on."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations

import torch
from torch import Tensor, nn

from heedful.conformance.calling.exceptions import (
    attempt,
    describe_exception,
    raising_frame,
    raising_line,
)
from heedful.conformance.calling.failures import TOO_FEW, is_refusal
from heedful.conformance.calling.target import TargetError
from heedful.conformance.evidence.attention import SMALLEST_FILL, RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.noise import draws_noise
from heedful.conformance.probes.divergence import first_divergent_step
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import ancestors
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

# Sizes at which blocks of code or of memory end.
LENGTHS: tuple[int, ...] = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65)
WEIGHT_TOLERANCE = 1e-6
TABLE_ROUNDING = 1e-7  # of float32, relative to the largest output
BLOCK_SIZE: re.Pattern[str] = re.compile(r"(bucket|block|chunk|segment|window|group)\w*(size|len)")
MEETS_ALL_KEYS = "the queries meet all keys"
APPLIES_SOFTMAX = "the weights are the softmax of the scores"
SEES_ALL_KEYS = "every query sees all keys, or all earlier keys"

Outcome = Tensor | Exception


@probe("length-dependent")
def lengths(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Run ever longer prefixes of one sequence. No length may raise or change earlier outputs."""
    if evidence.subject.fixed_sizes is not None or evidence.subject.convention.is_image:
        return
    inputs = _longest_inputs(evidence)
    outcomes = {
        length: attempt(lambda n=length: evidence.subject.run(inputs.tokens(0, n)).detach())
        for length in _lengths_to_try(evidence)
    }
    outputs = {n: result for n, result in outcomes.items() if not isinstance(result, Exception)}
    if not outputs:
        yield from _only_first_length(evidence, outcomes)
        return
    yield Fact("largest context", _describe_limit(evidence, inputs, outcomes))
    if evidence.subject.convention.guessed:
        return  # other arguments may not belong to another number of tokens
    finding = _check_exceptions(evidence, outcomes) or _check_outputs(evidence, inputs, outputs)
    if finding is not None:
        yield finding


def _only_first_length(evidence: Evidence, outcomes: Mapping[int, Outcome]) -> Iterator[Finding]:
    """Report a target that accepts no length but that of its first call, which it did not choose itself.

    A window that the constructor takes is such a choice.
    """
    length, error = next(iter(outcomes.items()))
    if isinstance(error, Exception) and _reads_own_size(error, evidence.inputs.sizes[1]):
        return
    if evidence.subject.convention.guessed or not isinstance(error, Exception) or is_refusal(error):
        return
    if isinstance(error, TargetError):
        raise error  # the call works, but what it returns is not understood
    proof = (
        f"With {length} tokens the target raises {describe_exception(error)}, and so it does with every number of "
        f"tokens but {evidence.inputs.sizes[1]}, which it was called with first."
    )
    yield Finding("length-dependent", "bug", proof, f"T = {length}", raising_line(error))


def _reads_own_size(error: Exception, size: int) -> bool:
    """Check whether the line that raises reads a size of its module, which the constructor was given."""
    frame, place = raising_frame(error), raising_line(error)
    module = None if frame is None else frame.f_locals.get("self")
    if place is None or not isinstance(module, nn.Module):
        return False
    read = set(re.findall(r"\bself\.(\w+)", place.source))
    given = inspect.signature(type(module)).parameters.keys() & read
    return any(vars(module).get(name) == size for name in given)


def _longest_inputs(evidence: Evidence) -> Inputs:
    """Draw the sequences whose prefixes are run."""
    B = 2 if evidence.subject.batched else 1
    return evidence.subject.draw(B, max(_lengths_to_try(evidence)), seed=4)


def _lengths_to_try(evidence: Evidence) -> list[int]:
    limit = evidence.subject.max_length or max(LENGTHS)
    return sorted({length for length in LENGTHS if length < limit} | {min(limit, max(LENGTHS))})


def _nearest(length: int, others: Iterable[int]) -> int:
    return min(others, key=lambda other: abs(other - length))


def _describe_limit(evidence: Evidence, inputs: Inputs, outcomes: Mapping[int, Outcome]) -> str:
    """Describe the largest number of tokens that the target accepts, found by bisection."""
    works = max(n for n, outcome in outcomes.items() if not isinstance(outcome, Exception))
    failing = [n for n in outcomes if n > works]
    fails = min(failing, default=works + 1)
    while fails - works > 1:
        middle = (works + fails) // 2
        outcome = attempt(lambda n=middle: evidence.subject.run(inputs.tokens(0, n)))
        works, fails = (works, middle) if isinstance(outcome, Exception) else (middle, fails)
    if failing or works == evidence.subject.max_length:
        return f"{works} tokens"
    if evidence.subject.max_length:
        return f"{evidence.subject.max_length} tokens"
    return f"no limit up to {works} tokens"


# --- lengths that raise ----------------------------------------------------------------------------


def _check_exceptions(evidence: Evidence, outcomes: Mapping[int, Outcome]) -> Finding | None:
    """Find the first length that raises although longer or shorter sequences work.

    If most lengths raise, the target is made for certain lengths only. If only the shortest ones raise, but for one
    token, which is broadcast, the target takes a minimum of tokens.
    """
    max_length = evidence.subject.max_length or 0
    working = [n for n, outcome in outcomes.items() if not isinstance(outcome, Exception)]
    failing = {
        n: outcome
        for n, outcome in outcomes.items()
        if isinstance(outcome, Exception) and not _is_limit(n, outcomes, max_length)
    }
    longer_than_one = min((n for n in working if n > 1), default=0)
    takes_minimum = min(failing, default=1) == 2 and max(failing) < longer_than_one
    if len(working) < len(failing) or takes_minimum:
        return None
    for length, error in failing.items():
        failure = (
            str(error)
            if isinstance(error, TargetError)
            else f"the target raises {describe_exception(error)}"
        )
        return Finding(
            "length-dependent",
            "bug",
            f"With {length} tokens {failure}; with {_nearest(length, working)} it works.",
            f"T = {length}",
            raising_line(error),
        )
    return None


def _is_limit(length: int, outcomes: Mapping[int, Outcome], max_length: int) -> bool:
    """Return True if a length may raise: the target rejects it, needs more tokens, or its tables are too short."""
    error = outcomes[length]
    if isinstance(error, ValueError | AssertionError | NotImplementedError):
        return True
    if isinstance(error, RuntimeError | IndexError) and TOO_FEW.search(describe_exception(error)):
        return True
    longer = [outcome for other, outcome in outcomes.items() if other > length]
    if isinstance(error, TargetError):  # rows are missing although nothing was raised
        return all(isinstance(outcome, TargetError) for outcome in longer)
    lines = {
        raising_line(outcome) if isinstance(outcome, Exception) else None
        for outcome in (error, *longer)
    }
    return length > max_length and None not in lines and len(lines) == 1


def _check_outputs(
    evidence: Evidence, inputs: Inputs, outputs: Mapping[int, Tensor]
) -> Finding | None:
    """Compare the outputs of all lengths by what must hold for a causal target, or for any other."""
    if draws_noise(evidence):  # more tokens draw other numbers
        return None
    if evidence.is_causal:
        finding = _compare_prefixes(evidence, inputs, outputs)
        finding = finding or _compare_weights(evidence, inputs, [max(outputs)])
    else:
        finding = _compare_weights(evidence, inputs, outputs)
        finding = finding or _compare_repetitions(evidence, outputs)
    return finding or _compare_orders(evidence, inputs, outputs)


# --- causal targets: later tokens do not change earlier outputs --------------------------------------


def _differ(a: Tensor, b: Tensor) -> bool:
    """Check whether outputs differ by more than the rounding of a float32 table that a longer call makes anew."""
    largest = b[b.isfinite()].abs().amax() if b.isfinite().any() else 1.0
    rounded = (a - b).abs() <= TABLE_ROUNDING * largest
    return bool((differing_entries(a, b) & ~rounded).any())


def _compare_prefixes(
    evidence: Evidence, inputs: Inputs, outputs: Mapping[int, Tensor]
) -> Finding | None:
    """Compare the first outputs of sequences that start with the same tokens."""
    pairs = [
        (shorter, longer)
        for shorter, longer in combinations(sorted(outputs), 2)
        if _differ(outputs[longer][:, :shorter], outputs[shorter])
    ]
    if not pairs:
        return None
    longer = min(longer for _, longer in pairs)
    shorter = max(shorter for shorter, other in pairs if other == longer)
    disagreements = {n: sum(n in pair for pair in pairs) for n in (shorter, longer)}
    wrong, right = (
        (shorter, longer) if disagreements[shorter] > disagreements[longer] else (longer, shorter)
    )
    distance = (outputs[longer][:, :shorter] - outputs[shorter]).abs().max()
    runs = [evidence.subject.record(inputs.tokens(0, n)) for n in (wrong, right)]
    step = first_divergent_step(*runs)
    if step is not None and _counts_from_the_end(runs[0], step):
        return None
    return Finding(
        "length-dependent",
        "bug",
        f"The first {shorter} outputs for {longer} tokens differ from the outputs for these {shorter} tokens alone by "
        f"{distance:.3g}, although with {evidence.inputs.sizes[1]} tokens no output depends on later ones.",
        f"T = {shorter} and T = {longer}",
        SourceLine.of(step),
    )


def _counts_from_the_end(observation: Observation, step: Step) -> bool:
    """Check whether a step depends on the positions T − 1, …, 1, 0, by which the last token is always the same."""
    T = observation.inputs.sizes[1]
    counted, steps = torch.arange(T - 1, -1, -1), observation.trace.steps
    tensors = (tensor_of(steps[index]) for index in ancestors(steps, step))
    return any(
        it.dtype == torch.int64 and it.shape[-1:] == (T,) and bool((it == counted).all())
        for it in tensors
        if it is not None and T > 1
    )


# --- other targets: every key has its weight at every length ---------------------------------------


def _compare_weights(evidence: Evidence, inputs: Inputs, lengths: Iterable[int]) -> Finding | None:
    """Recompute the weights from the scores at each length."""
    T = evidence.inputs.sizes[1]
    usual = find_attentions(evidence.subject.record(inputs.tokens(0, T)))
    if len(usual) != len(evidence.attentions):
        return None
    pairs = zip(evidence.attentions, usual, strict=True)
    expected = [_properties(first, T) & _properties(second, T) for first, second in pairs]
    for length in (it for it in lengths if it != T):
        attentions = find_attentions(evidence.subject.record(inputs.tokens(0, length)))
        if len(attentions) != len(expected):
            continue
        for attention, properties in zip(attentions, expected, strict=True):
            unequal = _unequal_operands(attention, length)
            if unequal is not None:
                return unequal
            lost = properties - _properties(attention, length)
            if MEETS_ALL_KEYS not in properties:
                continue  # blocks of tokens may be one key at one length
            if lost and attention.applied_weights.shape[1:] == (length, length):
                return Finding(
                    "length-dependent",
                    "suspicious" if lost == {SEES_ALL_KEYS} else "bug",  # a window may be intended
                    f"With {T} tokens {min(lost)}; with {length} tokens this no longer holds.",
                    f"T = {length}",
                    _line_of_lost_property(attention, lost),
                )
    return None


def _unequal_operands(attention: RecordedAttention, length: int) -> Finding | None:
    """Find a call of PyTorch's fused attention with fewer keys than values, which it does not always reject."""
    keys, values = attention.key.shape[1], attention.value.shape[1]
    if keys == values or not attention.fused:
        return None
    return Finding(
        "length-dependent",
        "bug",
        f"With {length} tokens PyTorch's fused attention is given {keys} keys and {values} values, and reads memory "
        "that is no part of the shorter tensor.",
        f"T = {length}",
        SourceLine.of(attention.scores_step),
    )


def _properties(attention: RecordedAttention, T: int) -> set[str]:
    """Return which of three properties hold for an attention over T tokens."""
    properties = set()
    weights = attention.applied_weights
    if weights.shape[1:] == (T, T):
        properties.add(MEETS_ALL_KEYS)
    softmax = attention.logits.softmax(-1)
    if softmax.shape == weights.shape and torch.allclose(weights, softmax, atol=WEIGHT_TOLERANCE):
        properties.add(APPLIES_SOFTMAX)
    visible = _unmasked(attention)
    if visible.all() or torch.equal(visible, torch.ones_like(visible).tril()):
        properties.add(SEES_ALL_KEYS)
    return properties


def _unmasked(attention: RecordedAttention) -> Tensor:
    """(L, Tq, Tk) Boolean, True where a key is visible, or hidden only by a bias that grows with the distance."""
    if attention.logits.shape != attention.visible.shape:
        return attention.visible  # the weights were cut
    largest = attention.logits.amax(-1, keepdim=True)
    return attention.visible | (largest - attention.logits < SMALLEST_FILL)


def _line_of_lost_property(attention: RecordedAttention, lost: set[str]) -> SourceLine | None:
    if MEETS_ALL_KEYS not in lost:
        return SourceLine.of(attention.softmax_step or attention.scores_step)
    T = attention.query.shape[1]
    shortened = (step for step in attention.chain if T not in step.shape[-1:])
    return SourceLine.of(next(shortened, attention.scores_step))


def _compare_repetitions(evidence: Evidence, outputs: Mapping[int, Tensor]) -> Finding | None:
    """Repeat one token: all keys and values are equal, so the output does not depend on their number."""
    token = evidence.subject.draw(1, 1, seed=5)
    pooled = evidence.subject.convention.pooled  # perhaps from pairs of tokens, and one is no pair
    lengths = (n for n in outputs if n > 1 or not pooled)
    rows = {n: evidence.subject.run(_repeat(token, n)).detach()[0] for n in lengths}
    usual = rows[_nearest(evidence.inputs.sizes[1], rows)][:1]
    wrong = [n for n, row in rows.items() if differing_entries(row, usual.expand_as(row)).any()]
    if not wrong or len(wrong) > 2 or len(rows) - len(wrong) < 4:  # positions matter as well
        return None
    length = wrong[0]
    distance = (rows[length] - usual).abs().max()
    return Finding(
        "length-dependent",
        "bug",
        f"The output for {length} equal tokens differs from that for other numbers of equal tokens by {distance:.3g}.",
        f"B = 1, T = {length}",
    )


def _repeat(inputs: Inputs, length: int) -> Inputs:
    arguments = {
        name: tensor.expand(-1, length, *tensor.shape[2:]).contiguous()
        for name, tensor in inputs.arguments.items()
    }
    return replace(inputs, arguments=arguments)


def _compare_orders(
    evidence: Evidence, inputs: Inputs, outputs: Mapping[int, Tensor]
) -> Finding | None:
    """Shuffle all tokens but the last: if positions do not matter, the last output must stay the same."""

    def changes_last(output: Tensor, shuffled: Inputs) -> bool:
        after = evidence.subject.run(shuffled).detach()
        return bool(differing_entries(output[:, -1], after[:, -1]).any())

    if changes_last(evidence.baseline.output, _shuffle_earlier(evidence.inputs)):
        return None
    if not evidence.influence[0, -1, 0, :-1].any():
        return None  # such as the only token of the last block
    for length, output in outputs.items():
        prefix = inputs.tokens(0, length)
        if not changes_last(output, _shuffle_earlier(prefix)):
            continue
        if length == evidence.inputs.sizes[1]:
            return None  # the tokens decide, not their number
        one, other = (evidence.subject.record(it) for it in (prefix, _shuffle_earlier(prefix)))
        attentions = find_attentions(one)
        sees_all = attentions and all(
            max(it.visible.shape[1:]) >= length and it.visible[:, -1].all() for it in attentions
        )
        return Finding(
            "length-dependent",
            "bug" if sees_all and not _is_in_blocks(evidence, length) else "suspicious",
            f"With {length} tokens the last output changes if the earlier tokens are shuffled; with "
            f"{evidence.inputs.sizes[1]} their order does not matter.",
            f"T = {length}",
            SourceLine.of(
                _step_dropping_keys(attentions)
                or _first_step_changing_last_token(one, other, attentions)
            ),
        )
    return None


def _is_in_blocks(evidence: Evidence, length: int) -> bool:
    """Check whether the target declares a size of blocks of tokens, and a sequence has several of them."""
    module = evidence.subject.module
    return any(
        isinstance(size, int) and not isinstance(size, bool) and 1 < size < length
        for part in (() if module is None else module.modules())
        for name, size in vars(part).items()
        if BLOCK_SIZE.search(name) is not None
    )


def _shuffle_earlier(inputs: Inputs) -> Inputs:
    T = inputs.sizes[1]
    # A reversal would keep pairs together, which a target may average.
    order = [*torch.randperm(T - 1, generator=torch.Generator().manual_seed(T)).tolist(), T - 1]
    arguments = {name: tensor[:, order] for name, tensor in inputs.arguments.items()}
    return replace(inputs, arguments=arguments)


def _step_dropping_keys(attentions: list[RecordedAttention]) -> Step | None:
    """Return the first step from which on scores or weights have fewer columns than keys."""
    for attention in attentions:
        keys = attention.scores_step.shape[-1]
        shortened = (step for step in attention.chain if step.shape[-1] < keys)
        step = next(shortened, None)
        if step is not None:
            return step
    return None


def _first_step_changing_last_token(
    one: Observation, other: Observation, attentions: list[RecordedAttention]
) -> Step | None:
    """Return the first step, from the first context on, whose row for the last token differs."""
    T = one.inputs.sizes[1]
    start = attentions[0].context_step.index if attentions else 0
    for step in one.trace.steps[start:]:
        value, other_value = tensor_of(step), tensor_of(other.trace[step.index])
        axes = [axis for axis, size in enumerate(step.shape) if size == T]
        if value is None or other_value is None or len(axes) != 1:
            continue
        if value.shape != other_value.shape:
            continue
        last, other_last = (tensor.select(axes[0], T - 1) for tensor in (value, other_value))
        if differing_entries(last, other_last).any():
            return step
    return None
