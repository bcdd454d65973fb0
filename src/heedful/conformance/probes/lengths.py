"""Whether more tokens, or fewer sequences, change what they have no part in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations

import torch
from torch import Tensor

from heedful.conformance.calling.exceptions import attempt, describe_exception, raising_line
from heedful.conformance.calling.target import TargetError
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import steps_from_tokens
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

# Where blocks of code, or of memory, end.
LENGTHS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65)
NEAR = 1e-6


@probe("length-dependent")
def lengths(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Runs ever longer beginnings of one sequence: a length that raises, or changes what came before, is wrong."""
    if evidence.subject.fixed_sizes is not None:
        return
    tokens = _tokens(evidence)
    outputs = {
        n: attempt(lambda n=n: evidence.subject.run(tokens.tokens(0, n)).detach())
        for n in _sizes(evidence)
    }
    works = {n: it for n, it in outputs.items() if not isinstance(it, Exception)}
    if not works:
        return
    longest = evidence.subject.max_length or 0
    yield Fact("largest context", _limit(evidence, tokens, outputs))
    for n, error in outputs.items():
        if isinstance(error, Exception) and not _is_limit(n, outputs, longest):
            yield Finding(
                "length-dependent",
                "bug",
                f"With {n} tokens {_happens(error)}; that is not so with {_nearest(n, works)}.",
                f"T = {n}",
                raising_line(error),
            )
            return
    if evidence.is_causal:
        beginnings = _of_beginnings(evidence, tokens, works)
        finding = beginnings or _of_weights(evidence, tokens, [max(works)])
    else:
        finding = _of_weights(evidence, tokens, works) or _of_repetition(evidence, works)
    finding = finding or _of_order(evidence, tokens, works)
    if finding is not None:
        yield finding


def _tokens(evidence: Evidence) -> Inputs:
    return evidence.subject.draw(
        2 if evidence.subject.batched else 1, max(_sizes(evidence)), seed=4
    )


def _sizes(evidence: Evidence) -> list[int]:
    longest = evidence.subject.max_length or max(LENGTHS)
    return sorted({n for n in LENGTHS if n < longest} | {min(longest, max(LENGTHS))})


def _nearest(n: int, lengths: Iterable[int]) -> int:
    return min(lengths, key=lambda it: abs(it - n))


def _happens(error: Exception) -> str:
    return (
        str(error) if isinstance(error, TargetError) else f"it raises {describe_exception(error)}"
    )


def _is_limit(n: int, outputs: Mapping[int, Tensor | Exception], max_length: int) -> bool:
    """Whether it is all right that a length raises: the target says so itself, or it is too long for its tables."""
    error = outputs[n]
    if isinstance(error, ValueError | AssertionError | NotImplementedError):
        return True
    longer = [it for m, it in outputs.items() if m > n]
    if isinstance(error, TargetError):  # rows are missing, and nobody said anything
        return all(isinstance(it, TargetError) for it in longer)
    places = {raising_line(it) if isinstance(it, Exception) else None for it in (error, *longer)}
    return n > max_length and None not in places and len(places) == 1


def _limit(evidence: Evidence, tokens: Inputs, outputs: Mapping[int, Tensor | Exception]) -> str:
    """The most tokens that a target takes."""
    works = max(n for n, it in outputs.items() if not isinstance(it, Exception))
    above = [n for n in outputs if n > works]
    fails = min(above, default=works + 1)
    while fails - works > 1:
        middle = (works + fails) // 2
        outcome = attempt(lambda n=middle: evidence.subject.run(tokens.tokens(0, n)))
        works, fails = (works, middle) if isinstance(outcome, Exception) else (middle, fails)
    if above or works == evidence.subject.max_length:
        return f"{works} tokens"
    return (
        f"{evidence.subject.max_length} tokens"
        if evidence.subject.max_length
        else f"no limit seen up to {works} tokens"
    )


# --- causal: the beginning of a sequence is as if it were all --------------------------------------


def _of_beginnings(
    evidence: Evidence, tokens: Inputs, outputs: Mapping[int, Tensor]
) -> Finding | None:
    """Compares the first outputs of sequences that begin alike."""
    apart = [
        (a, b)
        for a, b in combinations(sorted(outputs), 2)
        if differing_entries(outputs[b][:, :a], outputs[a]).any()
    ]
    if not apart:
        return None
    b = min(b for _, b in apart)
    a = max(a for a, second in apart if second == b)
    counts = {n: sum(n in pair for pair in apart) for n in (a, b)}
    wrong, right = (a, b) if counts[a] > counts[b] else (b, a)
    distance = (outputs[b][:, :a] - outputs[a]).abs().max()
    one, other = (evidence.subject.record(tokens.tokens(0, n)) for n in (wrong, right))
    return Finding(
        "length-dependent",
        "bug",
        f"The first {a} outputs for {b} tokens differ from those for these {a} alone by {distance:.3g}, though no "
        f"output depends on later tokens when there are {evidence.inputs.sizes[1]}.",
        f"T = {a} and T = {b}",
        SourceLine.of(_first_apart(one, other)),
    )


def _first_apart(one: Observation, other: Observation) -> Step | None:
    """The first step of a run made from tokens that another run does not take, or takes with other results."""
    alive = steps_from_tokens(one.trace.steps)
    for step, matching_step in zip(one.trace, other.trace, strict=False):
        if not _alike(step, matching_step):
            skipped = any(_alike(step, it) for it in other.trace.steps[step.index :])
            return matching_step if skipped else step
        if step.index not in alive or step.operation.startswith("empty"):
            continue
        value, its = tensor_of(step), tensor_of(matching_step)
        if value is None or its is None or value.dim() != its.dim():
            continue
        common = tuple(slice(0, min(sizes)) for sizes in zip(value.shape, its.shape, strict=True))
        if differing_entries(value[common], its[common]).any():
            return step
    rest = [*one.trace.steps[len(other.trace) :], *other.trace.steps[len(one.trace) :]]
    return next(iter(rest), None)


def _alike(step: Step, other: Step) -> bool:
    return (step.operation, step.line) == (other.operation, other.line)


# --- not causal: every key has its weight, at every length -----------------------------------------


def _of_weights(evidence: Evidence, tokens: Inputs, lengths: Iterable[int]) -> Finding | None:
    """Recomputes the weights from the scores of every length."""
    usual = [_traits(attention, evidence.inputs.sizes[1]) for attention in evidence.attentions]
    for n in lengths:
        observation = evidence.subject.record(tokens.tokens(0, n))
        attentions = find_attentions(observation)
        if len(attentions) != len(usual):
            continue
        for attention, traits in zip(attentions, usual, strict=True):
            lost = traits - _traits(attention, n)
            if lost:
                return Finding(
                    "length-dependent",
                    "suspicious" if lost == {SEEN} else "bug",  # a window may be meant
                    f"With {n} tokens {next(iter(sorted(lost)))} no longer, as with {evidence.inputs.sizes[1]}.",
                    f"T = {n}",
                    _place(attention, lost),
                )
    return None


KEYS = "the queries meet all keys"
SOFTMAX = "the weights are the softmax of the scores"
SEEN = "every query sees all keys, or all that came before"


def _traits(attention: RecordedAttention, T: int) -> set[str]:
    """What is true of an attention over T tokens."""
    found = set()
    if attention.applied_weights.shape[1:] == (T, T):
        found.add(KEYS)
    softmax = attention.logits.softmax(-1)
    if softmax.shape == attention.applied_weights.shape and torch.allclose(
        attention.applied_weights, softmax, atol=NEAR
    ):
        found.add(SOFTMAX)
    if attention.visible.all() or torch.equal(
        attention.visible, attention.visible.new_ones(attention.visible.shape).tril()
    ):
        found.add(SEEN)
    return found


def _place(attention: RecordedAttention, lost: set[str]) -> SourceLine | None:
    if KEYS in lost:
        T = attention.query.shape[1]
        return SourceLine.of(
            next((it for it in attention.chain if T not in it.shape[-1:]), attention.scores_step)
        )
    return SourceLine.of(attention.softmax_step or attention.scores_step)


def _of_repetition(evidence: Evidence, outputs: Mapping[int, Tensor]) -> Finding | None:
    """Repeats one token: as each of them attends to the same, the output of one is that of many."""
    one = evidence.subject.draw(1, 1, seed=5)
    rows = {n: evidence.subject.run(_repeated(one, n)).detach()[0] for n in outputs}
    usual = rows[_nearest(evidence.inputs.sizes[1], rows)]
    wrong = [n for n, it in rows.items() if differing_entries(it, usual[:1].expand_as(it)).any()]
    if len(wrong) > 2 or len(rows) - len(wrong) < 4:  # positions count, too
        return None
    for n in wrong:
        apart = (rows[n] - usual[:1]).abs().max()
        proof = (
            f"{n} equal tokens give another output than any other number of them, by {apart:.3g}."
        )
        return Finding("length-dependent", "bug", proof, f"B = 1, T = {n}")
    return None


def _of_order(evidence: Evidence, tokens: Inputs, outputs: Mapping[int, Tensor]) -> Finding | None:
    """Turns round all tokens but the last, which sees them all: its output stays where positions do not count."""

    def apart(before: Tensor, turned: Inputs) -> bool:
        after = evidence.subject.run(turned).detach()
        return bool(differing_entries(before[:, -1], after[:, -1]).any())

    if apart(evidence.baseline.output, _turned(evidence.inputs)):
        return None
    for n, output in outputs.items():
        turned = _turned(tokens.tokens(0, n))
        if not apart(output, turned):
            continue
        one, other = (evidence.subject.record(it) for it in (tokens.tokens(0, n), turned))
        attentions = find_attentions(one)
        return Finding(
            "length-dependent",
            "bug"
            if attentions and all(attention.visible[:, -1].all() for attention in attentions)
            else "suspicious",
            f"With {n} tokens the last output changes when those before are turned round; with "
            f"{evidence.inputs.sizes[1]} their order does not count.",
            f"T = {n}",
            SourceLine.of(_last_token_apart(one, other, attentions)),
        )
    return None


def _turned(inputs: Inputs) -> Inputs:
    T = inputs.sizes[1]
    order = [*range(T - 2, -1, -1), T - 1]
    return replace(inputs, arguments={name: it[:, order] for name, it in inputs.arguments.items()})


def _last_token_apart(
    one: Observation, other: Observation, attentions: list[RecordedAttention]
) -> Step | None:
    """The first step from a context on that holds something else for the last token."""
    T = one.inputs.sizes[1]
    for step in one.trace.steps[attentions[0].context_step.index if attentions else 0 :]:
        value, its = tensor_of(step), tensor_of(other.trace[step.index])
        axes = [axis for axis, size in enumerate(step.shape) if size == T]
        if value is None or its is None or value.shape != its.shape or len(axes) != 1:
            continue
        if differing_entries(*(it.select(axes[0], T - 1) for it in (value, its))).any():
            return step
    return None


def _repeated(inputs: Inputs, n: int) -> Inputs:
    return Inputs(
        {
            name: it.expand(-1, n, *it.shape[2:]).contiguous()
            for name, it in inputs.arguments.items()
        },
        inputs.vocabulary,
    )


@probe("length-dependent")
def batches(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Runs each sequence alone: its output must be that within the batch."""
    subject, inputs = evidence.subject, evidence.inputs
    if not subject.batched or evidence.influence[0, :, 1, :].any():
        return
    whole = subject.run(inputs).detach()
    for b in range(len(whole)):
        alone = attempt(lambda b=b: subject.run(inputs.entry(b)).detach())
        if isinstance(alone, Exception):
            proof = f"With one sequence alone it raises {describe_exception(alone)}; with two it does not."
            yield Finding("length-dependent", "bug", proof, "B = 1", raising_line(alone))
            return
        if differing_entries(alone[0], whole[b]).any():
            apart = (alone[0] - whole[b]).abs().max()
            proof = f"One sequence alone gives another output than within a batch of {len(whole)}, by {apart:.3g}."
            place = (
                SourceLine.of(_first_apart(subject.record(inputs.entry(b)), evidence.baseline))
                if b == 0
                else None
            )
            yield Finding("length-dependent", "bug", proof, f"B = 1 and B = {len(whole)}", place)
            return
