"""Whether an output depends on tokens and parameters alone, and whether a module holds all that it needs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from heedful.conformance.calling.exceptions import attempt, describe_exception, raising_line
from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.masking import is_triangular
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import VIEWS, steps_from_tokens, unused_steps
from heedful.conformance.recording.differences import changed_entries, differing_entries
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.observation import Observation
from heedful.conformance.recording.source import (
    SourceLine,
    attribute_definition,
    attribute_mutation,
    functions_of,
    last_assignment,
)
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.observation import Source, Step
from heedful.shapes import times

ALIKE = 0.6  # difflib's: "attn_scores" and "scores" are 0.71 alike


@probe("stale-state")
def history(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Runs other tokens first, of other sizes too: what comes after must be as on a fresh module."""
    inputs = evidence.inputs
    expected = evidence.subject.fresh().run(inputs).detach()
    for earlier in _histories(evidence):
        used = evidence.subject.fresh(keep_state=True)
        outcome = attempt(
            lambda used=used, earlier=earlier: [used.run(it).detach() for it in (*earlier, inputs)]
        )
        case = ", then ".join("B = {}, T = {}".format(*it.sizes) for it in (*earlier, inputs))
        if isinstance(outcome, Exception):
            proof = f"After a call with other tokens it raises {describe_exception(outcome)}"
            yield Finding("stale-state", "bug", proof, case, raising_line(outcome))
            return
        if differing_entries(outcome[-1], expected).any():
            apart = (outcome[-1] - expected).abs().max()
            proof = f"After a call with other tokens the output is another than on a fresh module, by {apart:.3g}."
            yield Finding("stale-state", "bug", proof, case, _kept(evidence, earlier))
            return


def _histories(evidence: Evidence) -> Iterator[list[Inputs]]:
    """What may be run before: other tokens; fewer, or more, and then others."""
    B, T = evidence.inputs.sizes
    subject = evidence.subject
    others = subject.draw(B, T, seed=1)
    yield [others]
    for seed, t in ((2, max(T - 3, 1)), (3, min(T + 2, subject.max_length or T + 2))):
        first = subject.draw(B, t, seed=seed)
        if not isinstance(attempt(lambda first=first: subject.fresh().run(first)), Exception):
            yield [first, others]


def _kept(evidence: Evidence, earlier: list[Inputs]) -> SourceLine | None:
    """Where what is left behind is made, if it is an attribute; otherwise where it is first used."""
    subject = evidence.subject
    before, after = subject.fresh(keep_state=True), subject.fresh(keep_state=True)
    for inputs in earlier[:-1]:
        before.run(inputs)
    one = before.record(evidence.inputs)
    for inputs in earlier:
        after.run(inputs)
    step = _first_apart(after.record(evidence.inputs), one)
    return _source_of(subject, step)


def _source_of(subject: Subject, step: Step | None) -> SourceLine | None:
    """The line that keeps, or changes, what a step reads; the step's own if there is none."""
    if step is None or step.module is None:
        return SourceLine.of(step)
    assert subject.module is not None
    owner = subject.module.get_submodule(step.module)
    read = re.findall(
        r"\bself(?:\.|, *['\"])(\w+)", step.source
    )  # self.name, getattr(self, "name")
    changes = (attribute_mutation(owner, name) for name in read)
    kept = [
        it.name.rpartition(".")[2] for it in step.inputs if it.kind in ("constant", "attribute")
    ]
    takings = (last_assignment(subject.callee, step, name) for name in kept)
    return next((it for it in (*changes, *takings) if it is not None), SourceLine.of(step))


def _first_apart(one: Observation, other: Observation) -> Step | None:
    """The first step of a run that another one on the same tokens does not take, or takes with another result."""
    for step, matching_step in zip(one.trace, other.trace, strict=False):
        if (step.operation, step.line, step.shape) != (
            matching_step.operation,
            matching_step.line,
            matching_step.shape,
        ):
            return step
        changed = changed_entries(one, other, step)
        if changed is not None and changed.any() and not step.operation.startswith("empty"):
            return step
    return None


@probe("stale-state")
def padding_history(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Runs other padding first: the padding that comes after must count."""
    subject, inputs = evidence.subject, evidence.inputs
    B, T = inputs.sizes
    if subject.padding is None or T < 3:
        return
    early, late = (torch.ones(B, T, dtype=torch.bool) for _ in range(2))
    early[:, T - 1], late[:, T - 2 :] = False, False
    expected = subject.fresh().run(inputs, keep=late).detach()
    used = subject.fresh(keep_state=True)
    used.run(inputs, keep=early)
    after = used.run(inputs, keep=late).detach()
    if differing_entries(after, expected)[late].any():
        one, other = used.record(inputs, keep=late), subject.fresh().record(inputs, keep=late)
        yield Finding(
            "stale-state",
            "bug",
            f"After a call with other padding the output is another than on a fresh module, by "
            f"{(after - expected)[late].abs().max():.3g}.",
            f"B = {B}, T = {T}, one padded token, then two",
            _source_of(subject, _first_apart(one, other)),
        )


@probe("undefined-or-global-name")
def names(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Looks for steps that read a global tensor where the function has one of its own by nearly that name."""
    for step in evidence.baseline.trace:
        for source in step.inputs:
            if source.kind != "constant" or (held := _global(evidence, step, source)) is None:
                continue
            own = _own_name(evidence, step, held, source.name)
            if own is None:
                continue
            yield Finding(
                "undefined-or-global-name",
                "bug",
                f"{source.name!r} is a global of {times(held.shape)} numbers, the same for all tokens; "
                f"what the call computes itself is {own!r}.",
                "",
                SourceLine.of(step),
            )
            return


def _global(evidence: Evidence, step: Step, source: Source) -> Tensor | None:
    """The tensor of more than one entry that a name stands for among the globals of the code around a step."""
    for function in functions_of(evidence.subject.callee):
        held = function.__globals__.get(source.name)
        if (
            function.__code__.co_filename == step.file
            and isinstance(held, Tensor)
            and held.numel() > 1
        ):
            return held
    return None


def _own_name(evidence: Evidence, step: Step, held: Tensor, name: str) -> str | None:
    """The local variable that a global is used in place of: made from the tokens, and in vain."""
    steps = evidence.baseline.trace.steps
    in_vain = steps_from_tokens(steps) & unused_steps(steps)
    own = [it for it in steps[: step.index] if it.index in in_vain and it.name.isidentifier()]
    close = difflib.get_close_matches(name, [it.name for it in own], n=1, cutoff=ALIKE)
    alike = [it.name for it in own if it.shape[-2:] == held.shape[-2:]]
    return next(iter([*close, *alike]), None)


@probe("mask-not-a-buffer", "table-not-a-buffer")
def buffers(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Moves a copy to the meta device: tensors in use that stay behind are no buffers."""
    pristine = evidence.subject.fresh().module
    if pristine is None:
        return
    steps = evidence.baseline.trace.steps
    before = {
        name: tensor
        for name, tensor in _attributes(pristine)
        if tensor.dim() > 0 and _is_read_where_it_lies(steps, name)
    }
    moved = dict(_attributes(pristine.to("meta")))
    for name, tensor in before.items():
        if moved[name].is_meta:
            continue
        yield Finding(
            "mask-not-a-buffer" if _is_mask(tensor) else "table-not-a-buffer",
            "bug",
            f"After .to('meta') {name!r} ({times(tensor.shape)}) is still on {tensor.device}.",
            "",
            attribute_definition(pristine, name, follow_locals=False),
        )


def _is_read_where_it_lies(steps: tuple[Step, ...], name: str) -> bool:
    """Whether a call computes with an attribute, neither moving it first nor writing into it, as into a cache."""
    readers = [it for it in steps if any(_is_attribute(source, name) for source in it.inputs)]
    while readers:
        if any(it.in_place for it in readers):
            return False
        if any(it.operation not in VIEWS for it in readers):
            return True
        views = {it.index for it in readers if not _moves(it)}
        readers = [it for it in steps if any(source.step in views for source in it.inputs)]
    return False


def _is_attribute(source: Source, name: str) -> bool:
    return source.kind == "attribute" and source.name == name


def _moves(step: Step) -> bool:
    """Whether a step brings a tensor to where another one, or the device named, is."""
    to = (*step.arguments[1:], *step.keywords.values())
    return step.operation in ("to", "type_as") and any(
        isinstance(it, Source | torch.device | str) for it in to
    )


def _attributes(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The tensors that a module and those within it hold, unregistered."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor):
                yield f"{path}.{name}" if path else name, value


def _is_mask(tensor: Tensor) -> bool:
    hiding = tensor.is_floating_point() and bool((tensor == -torch.inf).any())
    return tensor.dtype == torch.bool or hiding or is_triangular(tensor)
