"""Check that the argument for a mask of queries and keys has an effect, with the polarity that is declared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from heedful.conformance.calling import names
from heedful.conformance.calling.documentation import is_unused_on_purpose
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.handed_masks import documenting_part
from heedful.conformance.calling.mask_forms import MaskArgument
from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.masking import unused_masking
from heedful.conformance.probes.padded_batch import line_applying_argument, takes_padding
from heedful.conformance.probes.padding_argument import unmasked_call
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.assignments import compared_for_nothing, overwriting
from heedful.conformance.recording.call_sites import lines_calling
from heedful.conformance.recording.conditions import switch_of
from heedful.conformance.recording.forwarding import call_omitting
from heedful.conformance.recording.observation import Observation
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.recording.target_source import prose_about
from heedful.conformance.reporting.finding import Fact, Finding


@probe("mask-unused", "mask-inverted")
def attention_argument(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Hide later keys with the argument for a mask of queries and keys, and see which keys reach which queries."""
    subject, argument = evidence.subject, evidence.subject.attention_mask
    padding = subject.padding if takes_padding(evidence) else None
    if argument is None or (padding is not None and padding.name == argument.name):
        return
    if argument.declared is not None and argument.declared != argument.true_keeps:
        argument = replace(argument, true_keeps=argument.declared)
        subject = replace(subject, attention_mask=argument)
    T = evidence.inputs.sizes[1]
    earlier = torch.ones(T, T, dtype=torch.bool).tril()
    observation = attempt(lambda: subject.record(evidence.inputs, attend=earlier))
    if not isinstance(observation, Observation):
        return
    case = "B = {}, T = {}, later keys hidden".format(*evidence.inputs.sizes)
    if not argument.effective:
        yield _unused(subject, argument, observation, case)
    elif argument.declared is not None and _is_inverted(evidence, subject):
        keeps = "keeps" if argument.declared else "hides"
        yield Finding(
            "mask-inverted",
            "bug",
            f"True in {argument.name} {keeps} a key by what is said about it; here queries see only the keys that it "
            "should hide.",
            case,
            _line_handing_on(subject, argument, observation)
            or line_applying_argument(observation, argument),
        )


def _line_handing_on(
    subject: Subject, argument: MaskArgument, observation: Observation
) -> SourceLine | None:
    """Return the line on which the part that documents the mask hands it to a part of its own; None if it does not."""
    part = documenting_part(subject, argument.name, *observation.inputs.sizes)
    if part is None or subject.module is None:
        return None
    inside = f"{part.path}."
    readers = (
        step.module.removeprefix(inside)
        for step in observation.trace
        if step.module and step.module.startswith(inside)
        if any(it.kind == "input" and it.name == argument.name for it in step.inputs)
    )
    inner = next(readers, None)
    if inner is None:
        return None
    calls = lines_calling(subject.module, inside + inner.partition(".")[0])
    return next(iter(calls), None)


def _unused(
    subject: Subject, argument: MaskArgument, observation: Observation, case: str
) -> Finding:
    """Report a mask without effect: a bug, unless nothing reads it and the target may take it to fit an interface."""
    _, reason, line = unused_masking(observation) or (
        *("", ""),
        overwriting(subject.target.forward, argument.name)
        or compared_for_nothing(subject.target.forward, argument.name)
        or call_omitting(subject.target.callee, argument.name, names.ATTENTION_MASKS)
        or unmasked_call(observation),
    )
    on_purpose = is_unused_on_purpose(argument.name, prose_about(subject.target.callee))
    padding = subject.padding
    switch = ""
    if padding is not None and padding.hides:
        # Cross-attention may take the mask of the queries to fit an interface, beside that of the keys. Beside another
        # argument for padding, a setting may choose the mask instead.
        on_purpose |= padding.name in names.MEMORY_MASKS and not reason
        switch = switch_of(subject.module, argument.name)
    reason = f"It acts only together with {switch}." if switch else reason
    return Finding(
        "mask-unused",
        "suspicious" if on_purpose or switch else "bug",
        f"{reason} Hiding keys with {argument.name} does not change the output.".strip(),
        case,
        line,
        f"Check it together with {switch}." if switch else "",
    )


def _is_inverted(evidence: Evidence, subject: Subject) -> bool:
    """Check whether the queries in the middle see only later keys, under a mask that shows only earlier ones."""
    inputs, T = evidence.inputs, evidence.inputs.sizes[1]
    earlier = torch.ones(T, T, dtype=torch.bool).tril()

    def reached(t: int) -> bool:
        """Return whether token t reaches another one between the first and the last."""
        before, after = (
            subject.run(it, attend=earlier).detach() for it in (inputs, inputs.changed(0, t))
        )
        return bool(evidence.differs(before, after)[0, 1:-1].any())

    return reached(T - 1) and not reached(0)
