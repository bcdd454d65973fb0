"""Check that the padding argument has an effect, with the polarity that its name promises."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from heedful.conformance.calling import names
from heedful.conformance.calling.documentation import is_unused_on_purpose
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.mask_forms import LENGTHS, PADDING_FORMS, MaskArgument
from heedful.conformance.calling.masks import masks_by_name
from heedful.conformance.calling.roles import AllVisible
from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.fused import fused_arguments
from heedful.conformance.evidence.lost_masks import line_leaving_before_masks
from heedful.conformance.evidence.masking import unused_masking
from heedful.conformance.probes.mask_fill import LIKE_SCORES
from heedful.conformance.probes.padded_batch import (
    describe_sizes,
    line_applying_argument,
    padded_run,
    padded_subject,
    padding_has_effect,
    padding_is_inverted,
    real_tokens,
)
from heedful.conformance.probes.probe import probe
from heedful.conformance.probes.weighting_causes import scaling_step
from heedful.conformance.recording.assignments import (
    compared_for_nothing,
    left_unused,
    overwriting,
)
from heedful.conformance.recording.conditions import unmet_conditions
from heedful.conformance.recording.dataflow import steps_from_argument
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.forwarding import (
    call_forgetting,
    call_given_another,
    call_omitting,
)
from heedful.conformance.recording.observation import Observation, tensor_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.recording.target_source import prose_about
from heedful.conformance.reporting.finding import Fact, Finding

HIDE_BY_LENGTHS = "Make a mask of it, torch.arange(T) < lengths[:, None], and hide the other tokens in every attention."


@probe("mask-unused", "mask-inverted", "mask-fill-too-small")
def padding_argument(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Hide tokens with the padding argument. The output must change, as the argument's name promises."""
    subject = padded_subject(evidence)
    if subject is None or subject.padding is None:
        return
    argument = subject.padding
    yield Fact("padding mask", f"{argument.name} {argument.form}, {_polarity(argument)}")
    observation = padded_run(evidence, subject, "right")
    has_effect = padding_has_effect(evidence, subject)
    weak = None if has_effect else _adding_too_little(observation, argument.name)
    if weak is not None:
        yield weak
    elif not has_effect:
        unused = (
            left_unused(subject.target.forward, argument.name) if argument.form == LENGTHS else None
        )
        _, reason, line = unused_masking(observation) or (
            *("", "" if unused is None else "Nothing uses it."),
            unused
            or overwriting(subject.target.forward, argument.name)
            or compared_for_nothing(subject.target.forward, argument.name)
            or call_omitting(subject.target.callee, argument.name, names.MASKS)
            or call_given_another(subject.target.forward, argument.name, masks_by_name(subject))
            or line_leaving_before_masks(
                subject,
                evidence.inputs,
                real_tokens(evidence, "right"),
                re.compile(rf"\b{argument.name}\b"),
            )
            or unmasked_call(observation),
        )
        partner = _partner(evidence, subject, argument) or _switch(subject.module, argument.name)
        reason = f"It acts only together with {partner}." if partner else reason
        # No attention is found that it should act on, or none between tokens.
        callee = subject.target.callee
        forgotten = call_forgetting(callee, argument.name, names.MASKS) is not None
        forgotten &= not is_unused_on_purpose(argument.name, prose_about(callee))
        nowhere = not reason and (line is None or not (evidence.mixes_tokens or forgotten))
        yield Finding(
            "mask-unused",
            "suspicious" if partner or nowhere else "bug",
            f"{reason} Hiding the padding with {argument.name} does not change the output.".strip(),
            describe_sizes(evidence),
            line,
            f"Check it together with {partner}." if partner else HIDE_BY_LENGTHS if unused else "",
        )
    elif argument.declared is not None and padding_is_inverted(evidence, subject):
        convention = _convention(argument)
        added = argument.dtype.is_floating_point
        known = names.TRUE_KEEPS.get(argument.name) == argument.declared and not added
        line = line_applying_argument(observation, argument)
        unsure = known and argument.declared and _takes_booleans_alone(subject, argument)
        hides_zeros = line is not None and _hides_zeros(line, argument)
        unsure |= known and not argument.declared and hides_zeros
        yield Finding(
            "mask-inverted",
            "suspicious" if unsure else "bug",
            f"By {'convention' if known else 'its docstring'} {convention} in {argument.name}; here real tokens see "
            "only the padding.",
            describe_sizes(evidence),
            line,
        )


def _adding_too_little(observation: Observation, name: str) -> Finding | None:
    """Report a small number, such as −1e−9, that multiplies a mask which is added to the scores."""
    from_mask = steps_from_argument(observation.trace.steps, name)
    for attention in find_attentions(observation):
        for step in attention.chain:
            scaling = scaling_step(observation, attention.chain, step)
            added = None if scaling is None else tensor_of(scaling)
            if scaling is None or added is None or scaling.index not in from_mask:
                continue
            lowest = added.min().item()
            if LIKE_SCORES > -lowest > 0:
                proof = f"The scores of hidden keys are lowered by only {-lowest:.3g}, which hides none of them."
                return Finding("mask-fill-too-small", "bug", proof, "", SourceLine.of(scaling))
    return None


def _hides_zeros(line: SourceLine, argument: MaskArgument) -> bool:
    """Check whether the code itself says that a mask hides where it is 0, as in `mask[:, None] == 0`."""
    return re.search(rf"\b{argument.name}\b[^=]*== ?(0|False)\b", line.source) is not None


def _partner(evidence: Evidence, subject: Subject, argument: MaskArgument) -> str:
    """Return another mask beside which an argument has an effect; "" if there is none."""
    inputs = evidence.inputs
    all_real = torch.ones(inputs.sizes, dtype=torch.bool)
    for name in (it for it in masks_by_name(subject) if it != argument.name):
        for form in PADDING_FORMS:
            shown = AllVisible(form, argument.dtype, true_keeps=argument.true_keeps)
            other = {name: shown(*inputs.sizes, subject.dtype)}
            outputs = [
                attempt(
                    lambda keep=keep, other=other: subject.call(
                        subject.arguments(inputs, keep) | other, inputs
                    )
                )
                for keep in (real_tokens(evidence, "right"), all_real)
            ]
            hidden, whole = outputs
            if isinstance(hidden, Tensor) and isinstance(whole, Tensor):
                if differing_entries(hidden.detach(), whole.detach()).any():
                    return name
                break
    return ""


def _switch(module: nn.Module | None, argument: str) -> str:
    """Return the attribute without which a mask does not act; "" if there is none, or if it is set."""
    unmet = unmet_conditions(module)
    return next((attribute for names_, attribute in unmet if argument in names_), "")


def _takes_booleans_alone(subject: Subject, argument: MaskArgument) -> bool:
    """Check whether only a Boolean mask hides tokens: the convention that 1 keeps one is about masks of 0 and 1."""
    inputs = subject.draw(*(subject.fixed_sizes or (1, 4)))
    keep = torch.ones(inputs.sizes, dtype=torch.bool)
    keep[:, -1] = False
    booleans, numbers = (
        attempt(lambda caller=caller: caller.run(inputs, keep=keep))
        for caller in (subject, replace(subject, padding=replace(argument, dtype=torch.int64)))
    )
    if argument.dtype != torch.bool or not isinstance(booleans, Tensor):
        return False
    return not isinstance(numbers, Tensor) or bool(differing_entries(booleans, numbers).any())


def _convention(argument: MaskArgument) -> str:
    """Describe what is declared about a mask."""
    if argument.dtype.is_floating_point:
        return "0 keeps a token, and the lowest number hides it,"
    return "1 keeps a token" if argument.declared else "True hides a token"


def _polarity(argument: MaskArgument) -> str:
    if argument.dtype.is_floating_point:
        return "added to the scores"
    return "True keeps" if argument.true_keeps else "True hides"


def unmasked_call(observation: Observation) -> SourceLine | None:
    """Return the line that calls PyTorch's attention, or a softmax over scores, without a mask."""
    for attention in find_attentions(observation):
        if not attention.fused:
            return SourceLine.of(attention.softmax_step)
        if fused_arguments(attention.context_step)["attn_mask"] is None:
            return SourceLine.of(attention.context_step)
    return None
