"""Check that earlier calls do not change later outputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from heedful.conformance.calling.exceptions import attempt, describe_exception, raising_line
from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.assignments import last_assignment
from heedful.conformance.recording.definitions import attribute_mutation
from heedful.conformance.recording.differences import changed_entries, differing_entries
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.observation import Observation
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step

RESET: re.Pattern[str] = re.compile(r"(reset|clear|flush)(?!_parameters)(_\w+)?")  # a method's name
# `self.name` and `getattr(self, "name")` in a source line.
ATTRIBUTE_READ: re.Pattern[str] = re.compile(r"\bself(?:\.|, *['\"])(\w+)")


@probe("stale-state")
def state(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Run other tokens first, also of other sizes. The next output must equal a fresh module's."""
    inputs = evidence.inputs
    expected = evidence.subject.fresh().run(inputs).detach()
    for earlier in _earlier_calls(evidence):
        calls = [*earlier, inputs]
        used = evidence.subject.fresh(keep_state=True)
        outputs = attempt(
            lambda used=used, calls=calls: [used.run(call).detach() for call in calls]
        )
        case = ", then ".join("B = {}, T = {}".format(*call.sizes) for call in calls)
        if isinstance(outputs, Exception):
            evidence.subject.fresh().run(earlier[-1])  # an exception here has no state to blame
            proof = (
                f"After a call with other tokens the target raises {describe_exception(outputs)}"
            )
            yield Finding("stale-state", "bug", proof, case, raising_line(outputs))
            return
        if differing_entries(outputs[-1], expected).any():
            distance = (outputs[-1] - expected).abs().max()
            proof = f"After a call with other tokens the output differs from a fresh module's by {distance:.3g}."
            place = _line_keeping_state(evidence, earlier)
            yield _finding(used, lambda used=used: used.run(inputs), expected, proof, case, place)
            return


def _earlier_calls(evidence: Evidence) -> Iterator[list[Inputs]]:
    """Yield calls to make first: other tokens; fewer tokens and then others; more tokens and then others."""
    B, T = evidence.inputs.sizes
    subject = evidence.subject
    others = subject.draw(B, T, seed=1)
    yield [others]
    for seed, length in ((2, max(T - 3, 1)), (3, min(T + 2, subject.max_length or T + 2))):
        first = subject.draw(B, length, seed=seed)
        if not isinstance(attempt(lambda first=first: subject.fresh().run(first)), Exception):
            yield [first, others]


def _line_keeping_state(evidence: Evidence, earlier: Sequence[Inputs]) -> SourceLine | None:
    """Return the line that keeps what the last of the earlier calls leaves behind, or an even earlier one.

    Rows of a buffer that a call leaves as they are may be old, if no query weights them: then that line is returned.
    """
    subject = evidence.subject
    before, after = subject.fresh(keep_state=True), subject.fresh(keep_state=True)
    for inputs in earlier[:-1]:
        before.run(inputs)
    reference = before.record(evidence.inputs)
    for inputs in earlier:
        after.run(inputs)
    run, fresh = after.record(evidence.inputs), evidence.baseline
    weighting = _step_weighting_old_rows(run, fresh)
    if weighting is not None:
        return SourceLine.of(weighting)
    step = first_difference(run, reference) or first_difference(run, fresh)
    return line_changing_state(subject, step)


def _step_weighting_old_rows(run: Observation, fresh: Observation) -> Step | None:
    """Return the first attention that weights keys after those of its tokens, which are as in a fresh module."""
    T = run.inputs.sizes[1]
    for attention, other in zip(find_attentions(run), find_attentions(fresh), strict=False):
        key, own = attention.key[:, :T], other.key[:, :T]
        if key.shape != own.shape or differing_entries(key, own).any():
            return None
        if attention.applied_weights[..., T:].any():
            return attention.softmax_step or attention.context_step
    return None


def first_difference(run: Observation, reference: Observation) -> Step | None:
    """Return the first step of a run on equal tokens that a reference lacks, or that has another value there."""
    for step, other in zip(run.trace, reference.trace, strict=False):
        if (step.operation, step.line, step.shape) != (other.operation, other.line, other.shape):
            return step
        changed = changed_entries(run, reference, step)
        if changed is not None and changed.any() and not step.operation.startswith("empty"):
            return step
    return None


def line_changing_state(subject: Subject, step: Step | None) -> SourceLine | None:
    """Return the line that changes an attribute which a step reads, or else the step's own line.

    The step may read it by a local variable.
    """
    if step is None or step.module is None:
        return SourceLine.of(step)
    assert subject.module is not None
    owner = subject.module.get_submodule(step.module)
    kept = (
        source.name.rpartition(".")[2]
        for source in step.inputs
        if source.kind in ("constant", "attribute")
    )
    found = (last_assignment(subject.callee, step, name) for name in kept)
    assignments = [line for line in found if line is not None]
    reading = (step.source, *(line.source for line in assignments))
    read = (name for source in reading for name in ATTRIBUTE_READ.findall(source))
    mutations = (attribute_mutation(owner, name) for name in read)
    lines = (line for line in (*mutations, *assignments) if line is not None)
    return next(lines, SourceLine.of(step))


@probe("stale-state")
def padding_state(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Run other padding first. The next output must depend on its own padding only."""
    subject, inputs = evidence.subject, evidence.inputs
    B, T = inputs.sizes
    if subject.padding is None or T < 3:
        return
    first, second = (torch.ones(B, T, dtype=torch.bool) for _ in range(2))
    first[:, T - 1], second[:, T - 2 :] = False, False
    expected = subject.fresh().run(inputs, keep=second).detach()
    used = subject.fresh(keep_state=True)
    used.run(inputs, keep=first)
    output = used.run(inputs, keep=second).detach()
    if not differing_entries(output, expected)[second].any():
        return
    after, fresh = used.record(inputs, keep=second), subject.fresh().record(inputs, keep=second)
    distance = (output - expected)[second].abs().max()
    yield _finding(
        used,
        lambda: used.run(inputs, keep=second)[second],
        expected[second],
        f"After a call with other padding the output differs from a fresh module's by {distance:.3g}.",
        f"B = {B}, T = {T}, one padded token, then two",
        line_changing_state(subject, first_difference(after, fresh)),
    )


# --- prompts -------------------------------------------------------------------------------------------


@probe("stale-state")
def prompt_state(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Run a text, then another one with one more token, if the module itself keeps the keys for single tokens."""
    subject, prompt = evidence.subject, evidence.inputs
    (B, T), convention = prompt.sizes, subject.convention
    if subject.module is None or subject.cache_use is not None or subject.fixed_sizes is not None:
        return
    if T < 2 or convention.pooled or convention.is_image:
        return
    token, other = subject.draw(B, 1, seed=4), subject.draw(B, T, seed=1)
    fresh, used = subject.fresh(keep_state=True), subject.fresh(keep_state=True)
    alone = attempt(lambda: subject.fresh().run(token).detach())
    outputs = attempt(lambda: [fresh.run(it).detach() for it in (prompt, token)])
    if isinstance(alone, Exception) or isinstance(outputs, Exception):
        return
    if not differing_entries(outputs[-1], alone).any():
        return  # it keeps nothing
    after = attempt(lambda: [used.run(it).detach() for it in (other, prompt, token)])
    if isinstance(after, Exception) or not differing_entries(after[-1], outputs[-1]).any():
        return
    distance, place = (after[-1] - outputs[-1]).abs().max(), _line_counting(used, fresh)
    if place is None:
        step = first_difference(used.record(token), fresh.record(token))
        place = line_changing_state(subject, step)
    yield _finding(
        used,
        lambda: [used.run(it) for it in (prompt, token)][-1],
        outputs[-1],
        "A single token sees the keys of earlier calls, and those of the text before the last one are never left: its "
        f"output differs by {distance:.3g} from a fresh module's.",
        f"B = {B}, T = {T}, twice, then one token",
        place,
    )


def _line_counting(used: Subject, fresh: Subject) -> SourceLine | None:
    """Return the first line that changes an attribute which counts the tokens of all calls; None if none does."""
    assert used.module is not None
    assert fresh.module is not None
    values = vars(fresh.module).items()
    counted = (name for name, it in values if type(it) is int and getattr(used.module, name) != it)
    lines = (attribute_mutation(used.module, name) for name in counted)
    return next((line for line in lines if line is not None), None)


# --- all of them ---------------------------------------------------------------------------------------


def _finding(
    used: Subject,
    run: Callable[[], Tensor],
    expected: Tensor,
    proof: str,
    case: str,
    place: SourceLine | None,
) -> Finding:
    """Report state that changes an output; it may be intended if a method of the module makes it forget the state."""
    for name in (it for it in dir(type(used.module)) if RESET.fullmatch(it)):
        forgotten = attempt(getattr(used.module, name))
        output = attempt(lambda: run().detach())
        failed = isinstance(forgotten, Exception) or not isinstance(output, Tensor)
        if not failed and not differing_entries(output, expected).any():
            proof += f" After a call of {name}() it is the same."
            remedy = f"Call {name}() before each sequence."
            return Finding("stale-state", "suspicious", proof, case, place, remedy)
    return Finding("stale-state", "bug", proof, case, place)
