"""Probe: a mask that every call gets, from an example or because it is required, has an effect; others are read."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from heedful.conformance.calling import names
from heedful.conformance.calling.convention import MEMORY
from heedful.conformance.calling.documentation import documented_arguments, is_unused_on_purpose
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.masks import MASK_WORDS
from heedful.conformance.calling.resizing import Resized, is_binary
from heedful.conformance.calling.target import is_required
from heedful.conformance.evidence.attention import SMALLEST_FILL
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.padding_argument import unmasked_call
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import (
    SOFTMAXES,
    steps_from_argument,
    unused_steps,
)
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.forwarding import (
    call_forgetting,
    call_omitting,
    call_omitting_beside,
    definition_line,
    parameter_is_read,
)
from heedful.conformance.recording.line_tracer import traceable
from heedful.conformance.recording.observation import tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.recording.target_source import functions_of, prose_about
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Step, Trace
from heedful.observation.leaves import leaves_of

SELECTIONS = ("getitem", "select", "index_select")
SELECTED = (
    "the rows that this line selects do not depend on them.",
    "In the mask's rows of these queries, hide the keys that it hides from the others.",
)
FILLED = (
    "from this line on, all masks are the same.",
    "Make the mask a tensor of numbers before they are filled in, or a Boolean that masked_fill() takes.",
)


@probe("mask-unused")
def given_masks(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Exchange both numbers in the masks, in all entries and every second one: some result must change."""
    subject = evidence.subject
    given = subject.arguments(evidence.inputs)
    found = {it.name for it in (subject.padding, subject.attention_mask) if it is not None}
    for name in _masks(evidence, given):
        if name in found:
            continue
        plain = _trace(evidence, given)
        own = _of_example(evidence, name, given[name])
        others = [_trace(evidence, {**given, name: it}) for it in _exchanged(given[name], own)]
        if plain is None or None in others:
            continue
        read = steps_from_argument(plain.steps, name)
        if not read and subject.convention.from_example:
            yield from _left_out(evidence, name, own)
        runs = [plain, *(it for it in others if it is not None)]
        if not read or any(_results_differ(plain, it) for it in runs[1:]):
            continue
        losing = _step_losing(runs, read)
        if losing is None and subject.convention.from_example and read <= unused_steps(plain.steps):
            yield from _passed_in_vain(evidence, name, own)
        if losing is None or any(it.kind == "parameter" for it in losing.inputs):
            continue  # a trained factor may start at 0
        reason, remedy = SELECTED if losing.operation in SELECTIONS else FILLED
        yield Finding(
            "mask-unused",
            "bug",
            f"Other entries of {name} change no result: {reason}",
            f"{name} {tuple(given[name].shape)}",
            SourceLine.of(losing),
            remedy,
        )
        return
    unread = next(_unread(evidence, {*found, *given}), None) or _unread_by_part(evidence)
    if unread is not None:
        yield unread


def _unread_by_part(evidence: Evidence) -> Finding | None:
    """Return a finding if a part of a module requires a mask, or lengths, that its softmax is computed without."""
    module, trace = evidence.subject.module, evidence.baseline.trace
    for step in (it for it in trace if it.operation in SOFTMAXES and it.module):
        part = None if module is None else module.get_submodule(step.module or "")
        forward = None if part is None else traceable(part)
        if part is None or forward is None or step.function != forward.__qualname__:
            continue
        documented, prose = documented_arguments(part), prose_about(part)
        for name, parameter in inspect.signature(forward).parameters.items():
            of_tokens = any(word in name.lower() for word in (*MASK_WORDS, "lengths"))
            if not of_tokens or not is_required(parameter) or parameter_is_read(forward, name):
                continue
            if not is_unused_on_purpose(name, prose):
                return Finding(
                    "mask-unused",
                    "bug" if documented.get(name) else "suspicious",
                    f"{type(part).__name__} requires {name}, but nothing reads it, so that its softmax weights "
                    "padding, too.",
                    "",
                    SourceLine.of(step),
                    f"Hide the tokens with {name} before the softmax.",
                )
    return None


def _unread(evidence: Evidence, given: set[str]) -> Iterator[Finding]:
    """Report an optional mask that nothing reads.

    It is a bug if a call that takes such a mask does not get it, and suspicious if an attention is computed without it.
    """
    target = evidence.subject.target
    for name in target.parameters:
        named_so = any(word in name.lower() for word in MASK_WORDS)
        if name in given or not named_so or is_unused_on_purpose(name, prose_about(target.callee)):
            continue
        line = call_forgetting(target.callee, name, names.MASKS)
        if line is not None:
            yield Finding(
                "mask-unused",
                "bug",
                f"Nothing reads {name}, and the call on this line takes a mask but is given none.",
                "",
                line,
                f"Pass {name} on.",
            )
            return
        if evidence.attentions and not parameter_is_read(target.forward, name):
            yield Finding(
                "mask-unused",
                "suspicious",
                f"Nothing reads {name}, so no attention hides what it hides.",
                "",
                unmasked_call(evidence.baseline) or definition_line(target.forward),
                f"Hide the keys with {name} before the softmax, or take the argument away.",
            )
            return


def _left_out(evidence: Evidence, name: str, mask: Tensor) -> Iterator[Finding]:
    """Report a mask of an example that hides something, if a call that takes such a mask does not get it.

    The call may get it as another argument than the one of its own name.
    """
    callee = evidence.subject.target.callee
    line = call_omitting(callee, name, names.MASKS)
    reason = "the call on this line takes a mask but is given none"
    if line is None:
        line = call_omitting_beside(callee, name, {name})
        reason = f"the call on this line gives it no {name}"
    if line is None and _is_documented_alone(evidence, name):
        line = definition_line(evidence.subject.target.forward)
        reason = "the documentation says what it hides"
    said = prose_about(callee)
    if line is None and name in names.MASKS and not is_unused_on_purpose(name, said):
        weighting = (it for it in evidence.baseline.trace if it.operation in SOFTMAXES)
        line = unmasked_call(evidence.baseline) or SourceLine.of(next(weighting, None))
        reason = "the softmax on this line weights all keys"
    if line is None or bool((mask == mask.flatten()[0]).all()):
        return
    yield Finding(
        "mask-unused",
        "bug",
        f"No step reads {name}, and {reason}.",
        f"{name} {tuple(mask.shape)}",
        line,
        f"Pass {name} on.",
    )


def _passed_in_vain(evidence: Evidence, name: str, mask: Tensor) -> Iterator[Finding]:
    """Report a mask of an example that hides something, if nothing uses what is computed from it."""
    weighting = next((it for it in evidence.baseline.trace if it.operation in SOFTMAXES), None)
    if weighting is not None and not bool((mask == mask.flatten()[0]).all()):
        yield Finding(
            "mask-unused",
            "bug",
            f"Nothing uses what is computed from {name}: the softmax on this line weights all keys.",
            f"{name} {tuple(mask.shape)}",
            SourceLine.of(weighting),
            "Hide the scores where it says so, before their softmax.",
        )


def _is_documented_alone(evidence: Evidence, name: str) -> bool:
    """Check whether the documentation speaks of an argument that no code reads.

    One for a second sequence is left to the probes of that sequence.
    """
    callee, convention = evidence.subject.target.callee, evidence.subject.convention
    said = documented_arguments(callee).get(name, "").lower()
    on_purpose = is_unused_on_purpose(name, said)
    if not said or on_purpose or any(parameter_is_read(it, name) for it in functions_of(callee)):
        return False
    return len(convention.names) == 1 and MEMORY not in convention.constants.values()


def _of_example(evidence: Evidence, name: str, given: Tensor) -> Tensor:
    """Return a mask as it is in the example, before its sizes were changed."""
    constant = evidence.subject.convention.constants.get(name)
    value = constant.value if isinstance(constant, Resized) else None
    return value if isinstance(value, Tensor) else given


def _masks(evidence: Evidence, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the arguments that are called masks by their names or their documentation, and hold two numbers.

    These are 1 and 0, or 0 and a low number that is added to scores.
    """
    documented = documented_arguments(evidence.subject.target.callee)
    for name, value in given.items():
        said = f"{name} {documented.get(name, '')}".lower()
        if not isinstance(value, Tensor) or not any(word in said for word in MASK_WORDS):
            continue
        if is_binary(value) or _is_added(_of_example(evidence, name, value)):
            yield name


def _is_added(mask: Tensor) -> bool:
    """Check whether a mask has low numbers alone beside 0."""
    hides = mask < -SMALLEST_FILL
    return mask.is_floating_point() and bool(hides.any()) and bool((hides | (mask == 0)).all())


def _exchanged(mask: Tensor, of_example: Tensor) -> Iterator[Tensor]:
    """Yield a mask with all its entries exchanged for the other number in the example's, and with every second one."""
    second = torch.arange(mask.numel()).reshape(mask.shape) % 2 == 0
    added = _is_added(of_example)
    other = torch.where(mask == 0, of_example.min(), 0) if added else 1 - mask.to(torch.float64)
    for chosen in (torch.ones_like(second), second, ~second):
        yield torch.where(chosen, other.to(mask.dtype), mask)


def _trace(evidence: Evidence, given: Mapping[str, Any]) -> Trace | None:
    """Return the recording of a call; None if the target does not take the arguments."""
    with torch.no_grad(), evidence.subject.isolated():
        trace = attempt(lambda: evidence.subject.trace(given))
    return None if isinstance(trace, Exception) else trace


def _results_differ(a: Trace, b: Trace) -> bool:
    """Check whether any tensor in the results of two calls differs."""
    ours, theirs = (
        [leaf for _, leaf in leaves_of(it.result) if isinstance(leaf, Tensor)] for it in (a, b)
    )
    return any(
        x.shape != y.shape or bool(differing_entries(x, y).any())
        for x, y in zip(ours, theirs, strict=False)
    )


def _step_losing(runs: list[Trace], read: set[int]) -> Step | None:
    """Return the first step whose result is the same in all runs, though it was computed from different masks."""
    differing: set[int] = set()
    for index in sorted(read):
        steps = [it.steps[index] for it in runs if index < len(it.steps)]
        values = [tensor_of(step) for step in steps]
        first = values[0]
        same = first is not None and all(
            it is not None and it.shape == first.shape and not differing_entries(it, first).any()
            for it in values
        )
        behind = {source.step for source in steps[0].inputs}
        from_masks = any(source.kind == "input" for source in steps[0].inputs)
        if same and (behind & differing or from_masks):
            return steps[0]
        if not same:
            differing.add(index)
    return None
