"""Check that padding on either side does not change the outputs of real tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.conformance.calling import names
from heedful.conformance.calling.convention import MEMORY
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.mask_forms import LENGTHS, MaskArgument
from heedful.conformance.calling.masks import masks_by_name
from heedful.conformance.calling.subject import Subject
from heedful.conformance.evidence.alignment import PartialRun
from heedful.conformance.evidence.attention import RecordedAttention
from heedful.conformance.evidence.attention_search import find_attentions
from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.evidence.expectations import is_after_prefix
from heedful.conformance.evidence.noise import draws_noise
from heedful.conformance.probes.padded_batch import (
    describe_sizes,
    line_applying_argument,
    masked_rows_spoil,
    padded_run,
    padded_subject,
    padding_has_effect,
    padding_is_inverted,
    padding_sides,
    reads_argument,
    real_tokens,
    takes_padding,
)
from heedful.conformance.probes.padded_pooling import pooling_line
from heedful.conformance.probes.padding_causes import find_padding_cause, rows_of_entries
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.dataflow import ancestors
from heedful.conformance.recording.differences import coarsest_dtype, differing_entries
from heedful.conformance.recording.forwarding import call_mistaking, call_omitting_beside
from heedful.conformance.recording.inputs import Inputs
from heedful.conformance.recording.observation import Observation, value_of
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.recording.target_source import prose_about
from heedful.conformance.reporting.finding import Fact, Finding

LANDMARKS: re.Pattern[str] = re.compile(r"nystr[oö]m|landmarks?\b")
LEFT_PADDING: re.Pattern[str] = re.compile(
    r"\bleft[- ](side )?pad|\bpadding_side\W+left|\bpad\w*\W[^.]{0,60}\b(on|to|at|from|be|is|are) (the |its )?left\b"
)
FILL: re.Pattern[str] = re.compile(r"mask|fill|where|inf|pad|e\+?\d|bias")
"""What a line contains that hides scores, if only by too small a number."""
EPSILON = 1e-7
"""A share of the output that float32 does not show."""
OF_PADDING: re.Pattern[str] = re.compile(r"mask|pad|len|valid|keep|real|attend|exist|present|seq")
"""What the names of arguments contain that tell real tokens from padding; others may hide tokens for another reason."""
CONVOLUTIONS: tuple[str, ...] = ("conv1d", "conv2d", "unfold")


class _Change(NamedTuple):
    """A sequence whose real tokens come out differently because of its padding.

    Attributes:
        sequence: its index in the batch.
        proof: a sentence for the report.
        by_values: whether the values of padded tokens matter, and not only their number.
    """

    sequence: int
    proof: str
    by_values: bool


OF_EARLIER_STEP: re.Pattern[str] = re.compile(r"weight|align|prev")  # arguments of a decoder's step
MORE_TOKENS = 9  # a number that no other axis of a guessed argument has


@probe(
    "padding-leak",
    "mask-broadcast",
    "left-padding-positions",
    "mask-fill-too-small",
    "mask-after-softmax",
    "mask-inverted",
)
def padding(evidence: Evidence) -> Iterator[Finding | Fact]:
    """Run a padded batch, and each sequence alone. The outputs of real tokens must be equal."""
    subject = padded_subject(evidence)
    if subject is not None:
        found = _most_precise(evidence, subject)
        yield from found or _without_positions(evidence, subject)
    for argument in evidence.subject.weak if takes_padding(evidence) else ():
        weak = replace(evidence.subject, padding=argument)
        if argument.form == LENGTHS and padding_is_inverted(evidence, weak):
            yield _inversion(evidence, weak)
        elif argument.form == LENGTHS:
            yield from _hidden_real_keys(evidence, weak)
        # A second mask may be meant for queries or results; one that lowers the scores of keys is meant to hide them.
        meant = ["mask-fill-too-small"]
        if argument.form == LENGTHS:
            meant += ["mask-broadcast"]
            meant += ["padding-leak"] if _is_forgotten(evidence, weak) else []
        yield from (it for it in _most_precise(evidence, weak) if it.name in meant)


def _most_precise(evidence: Evidence, subject: Subject) -> list[Finding]:
    """Return the findings about a padding argument; those with its other polarity if only they name a cause.

    The polarity of a mask that does not hide tokens cannot be learned from what it hides.
    """
    argument = subject.padding
    assert argument is not None
    found = list(_leaks(evidence, subject))
    known = argument.hides or argument.declared is not None or argument.form == LENGTHS
    if known or [it.name for it in found] not in ([], ["padding-leak"]):
        return found
    other = replace(argument, true_keeps=not argument.true_keeps)
    others = list(_leaks(evidence, replace(subject, padding=other)))
    return others if [it.name for it in others] not in ([], ["padding-leak"]) else found


def _without_positions(evidence: Evidence, subject: Subject) -> Iterator[Finding | Fact]:
    """Run padding on the left without the positions that a target may be given, and may count itself.

    Code that speaks of padding on the left has to count right; other targets leave it to those who call them.
    """
    given = subject.positions
    if (
        given is None
        or given in subject.target.required
        or "left" not in padding_sides(evidence, subject)
    ):
        return
    unsaid = replace(subject, positions=None)
    found = [it for it in _leaks(evidence, unsaid) if it.name == "left-padding-positions"]
    if LEFT_PADDING.search(prose_about(subject.target.callee)):
        yield from found
    elif found:
        yield Fact(
            "left padding", f"needs {given}: without it, positions are counted from the padding on"
        )


def _is_forgotten(evidence: Evidence, subject: Subject) -> bool:
    """Check whether one attention hides the padding of a batch, and another one shows all tokens."""
    keep = real_tokens(evidence, "right")
    attentions = list(find_attentions(padded_run(evidence, subject, "right")))
    hides = (_hides_padding(evidence, *it, keep) for it in enumerate(attentions))
    return any(hides) and any(attention.visible.all() for attention in attentions)


def _inversion(evidence: Evidence, subject: Subject) -> Finding:
    """Report lengths that hide the real tokens."""
    assert subject.padding is not None
    observation = padded_run(evidence, subject, "right")
    return Finding(
        "mask-inverted",
        "bug",
        f"{subject.padding.name} is the number of real tokens; here real tokens see only the padding.",
        describe_sizes(evidence),
        line_applying_argument(observation, subject.padding),
    )


def _hidden_real_keys(evidence: Evidence, subject: Subject) -> Iterator[Finding]:
    """Report a call of PyTorch's attention whose padding mask hides the tokens that the lengths say are real."""
    assert subject.padding is not None
    keep = real_tokens(evidence, "right")
    observation = padded_run(evidence, subject, "right")
    for step in observation.trace:
        mask = value_of(observation, step.keywords.get("key_padding_mask"))
        if mask is None or mask.shape != keep.shape:
            continue
        if torch.equal(mask if mask.dtype == torch.bool else mask < -1, keep):
            proof = (
                f"{subject.padding.name} is the number of real tokens; the mask of this call hides these, and shows "
                "the padding."
            )
            case = describe_sizes(evidence)
            yield Finding("mask-inverted", "bug", proof, case, SourceLine.of(step))
            return


def _leaks(evidence: Evidence, subject: Subject) -> Iterator[Finding]:
    """Report padding that changes the outputs of real tokens, given by the padding argument of a subject."""
    if not padding_has_effect(evidence, subject) or padding_is_inverted(evidence, subject):
        return
    for side in padding_sides(evidence, subject):
        keep = real_tokens(evidence, side)
        padded = padded_run(evidence, subject, side)
        if masked_rows_spoil(padded, keep):
            continue  # the probe of masked rows reports it
        masked = _masked_arguments(subject, padded)
        change = _find_leak(evidence, subject, padded, keep, masked)
        comparable = masked is None and subject.fixed_sizes is None
        comparable = comparable and not (evidence.causal_alone or draws_noise(evidence))
        positions_differ = side == "left" and _positions_are_given(subject)
        if change is None and comparable and not positions_differ:
            change = _compare_with_unpadded(evidence, padded, keep)
            change = change or _compare_with_batch(evidence, subject, padded, keep)
            change = None if change and _takes_second_sequence(evidence, subject) else change
        if change is not None:
            yield _report(evidence, subject, padded, keep, change)
            return


def _masked_arguments(subject: Subject, padded: Observation) -> list[str] | None:
    """Return the arguments after which a mask is named, as context_mask; None if it may be of all tokens.

    Those of queries, keys and values hold the same tokens, unless there is a mask of each. Elsewhere, a mask that meets
    no scores, but the rows of the output, is one of the queries.
    """
    of_tokens, mask = subject.convention.names, subject.padding
    if mask is None:
        return None
    masks = [it.lower() for it in subject.target.parameters if "mask" in it.lower()]
    with_own = [it for it in of_tokens if any(name.startswith(f"{it.lower()}_") for name in masks)]
    one_for_each = len(with_own) == len(of_tokens)
    known = () if one_for_each else (*names.QUERIES, *names.KEYS, *names.VALUES)
    own = [it for it in with_own if mask.name.lower().startswith(f"{it.lower()}_")]
    if not own and len(of_tokens) > 1 and _acts_behind(padded, mask):
        own = [*of_tokens[:1]]
    return own if 0 < len(own) < len(of_tokens) and not {*own} & {*known} else None


def _acts_behind(padded: Observation, mask: MaskArgument) -> bool:
    """Check whether a mask is read, and no attention is computed from it."""
    steps, attentions = padded.trace.steps, find_attentions(padded)
    readers = {step.index for step in steps if reads_argument(step, mask)}
    behind = {index for it in attentions for index in ancestors(steps, it.context_step)}
    return bool(readers and attentions) and readers.isdisjoint(behind)


def _positions_are_given(subject: Subject) -> bool:
    """Check whether an example has other arguments for each token, which padding on the left would shift."""
    convention = subject.convention
    return convention.from_example and convention.guessed and _has_others(subject)


def _takes_second_sequence(evidence: Evidence, subject: Subject) -> bool:
    """Check whether arguments of unknown roles may have another length than the tokens: those of a second sequence."""
    inputs, convention = evidence.inputs, subject.convention
    (B, T), padding = inputs.sizes, subject.padding
    if not convention.guessed or T < 2:
        return False
    given = subject.arguments(inputs)
    others = {
        name: constant(B, T - 1, subject.dtype)
        for name, constant in convention.constants.items()
        if callable(constant) and (padding is None or name != padding.name)
    }
    vary = [name for name, it in others.items() if isinstance(it, Tensor) and T - 1 in it.shape]
    for shorter in (*({name: others[name]} for name in vary), *([others] if vary else [])):
        output = attempt(lambda shorter=shorter: subject.call({**given, **shorter}, inputs))
        if isinstance(output, Tensor):
            return True
    return False


def _has_others(subject: Subject) -> bool:
    """Check whether an example has other arguments than the tokens and their padding mask."""
    return any(
        subject.padding is None or name != subject.padding.name
        for name in subject.convention.constants
    )


def _find_leak(
    evidence: Evidence,
    subject: Subject,
    padded: Observation,
    keep: Tensor,
    only: list[str] | None,
) -> _Change | None:
    """Return the first sequence in which a padded token's value changes a real token's output."""
    for b in range(1, len(keep)):
        t = int((~keep[b]).nonzero()[0])
        changed = subject.run(evidence.inputs.changed(b, t, only), keep=keep).detach()
        rows = evidence.differs(padded.output, changed)[b] & keep[b]
        if rows.any():
            i = int(rows.nonzero()[0])
            proof = f"Changing token {t} of sequence {b}, which is padding, changes output {i}, which is not."
            return _Change(b, proof, by_values=True)
    return None


def _compare_with_unpadded(evidence: Evidence, padded: Observation, keep: Tensor) -> _Change | None:
    """Return the first sequence whose output differs from that of its real tokens alone."""
    if not evidence.baseline.output.isfinite().all():
        return None  # padding is not what spoils the output
    everything = torch.ones_like(keep[:1]) if _replaces_the_usual_mask(evidence) else None
    for b in range(len(keep)):
        real = keep[b].nonzero().flatten()
        start, stop = int(real[0]), int(real[-1]) + 1
        cut = evidence.subject.convention.max_tokens is not None
        if start and cut and _has_others(evidence.subject):
            continue  # the example's other arguments belong to its first tokens
        entry = evidence.inputs.entry(b).tokens(start, stop)
        seen = None if everything is None else everything[:, start:stop]
        alone = evidence.subject.run(entry, keep=seen).detach()[0]
        within = padded.output[b, start:stop]
        # The angles of rotations may be float32, or a table of them was, before it was converted. Their differences
        # are then equal only up to its rounding.
        dtype = coarsest_dtype(padded)
        dtype = torch.float32 if start and dtype == torch.float64 else dtype
        if (
            alone.shape == within.shape
            and differing_entries(alone.to(dtype), within.to(dtype)).any()
        ):
            side = "left" if start else "right"
            distance = (alone - within).abs().max()
            if distance < EPSILON * within.abs().max():
                continue  # weights that are divided by their sum and a small number
            count = int((~keep[b]).sum())
            proof = (
                f"With {count} padding tokens on its {side}, the output of sequence {b} differs from its "
                f"output without padding by {distance:.3g}."
            )
            return _Change(b, proof, by_values=False)
    return None


def _compare_with_batch(
    evidence: Evidence, subject: Subject, padded: Observation, keep: Tensor
) -> _Change | None:
    """Return the first padded sequence if its output in the batch differs from that of a call with it alone."""
    b = next((b for b in range(len(keep)) if not keep[b].all()), None)
    if b is None or not evidence.baseline.output.isfinite().all():
        return None
    alone = attempt(lambda: subject.run(evidence.inputs.entry(b), keep=keep[b : b + 1]).detach()[0])
    if isinstance(alone, Exception) or alone.shape != padded.output[b].shape:
        return None
    real, dtype = keep[b], coarsest_dtype(padded)
    one, within = alone[real].to(dtype), padded.output[b][real].to(dtype)
    if not differing_entries(one, within).any():
        return None
    distance = (one - within).abs().max()
    proof = (
        f"Sequence {b} and its padding, in a call with this sequence alone, come out differently from the same in a "
        f"batch, by {distance:.3g}: a single sequence's padding counts."
    )
    return _Change(b, proof, by_values=True)


def _replaces_the_usual_mask(evidence: Evidence) -> bool:
    """Check whether a mask that hides nothing changes which keys queries see: later ones without a mask, or with one.

    Lengths in an example are replaced, too: they are those of the example's own sequences.
    """
    subject, (B, T) = evidence.subject, evidence.inputs.sizes
    if subject.convention.from_example and subject.padding and subject.padding.form == LENGTHS:
        return True
    only_with_mask = bool(evidence.expected.causal) and not evidence.is_causal
    usual = subject.padding is None or subject.padding.form == "(B, T)" or not evidence.is_causal
    if subject.padding is None or (usual and not only_with_mask):
        return False
    seen = subject.run(evidence.inputs, keep=torch.ones(B, T, dtype=torch.bool)).detach()
    return bool(evidence.differs(seen, evidence.baseline.output).any())


def _report(
    evidence: Evidence, subject: Subject, padded: Observation, keep: Tensor, change: _Change
) -> Finding:
    """Name the cause of a change."""
    b = change.sequence
    name, reason, line = find_padding_cause(evidence, subject, padded, keep, b)
    is_left = not keep[b, 0]
    if name == "padding-leak" and is_left and not change.by_values:
        name, reason = "left-padding-positions", "Positions are counted from the padding on."
        line = _line_counting_positions(subject, evidence.inputs.entry(b), keep[b])
    fills = name != "mask-fill-too-small" or line is None or FILL.search(line.source)
    if (name == "padding-leak" or not fills) and subject.padding is not None:
        callee, own = subject.target.callee, subject.padding.name
        known = (*names.PADDING_MASKS, *names.ADDED_MASKS, own)
        omitting = call_omitting_beside(callee, own, known) or call_mistaking(callee, known)
        if omitting is not None:
            name, reason = "padding-leak", reason if fills else "No mask hides the padding."
        line = omitting or line
    translates = MEMORY in subject.convention.constants.values()  # pads its results on the right
    unsure = name == "left-padding-positions" and (translates or not evidence.is_causal)
    if name == "left-padding-positions" and line is not None and "mask" in line.source:
        unsure = True  # whose rows the mask tells apart
    unsure |= is_after_prefix(subject.target)  # the mask may tell which tokens belong to the prefix
    unsure |= subject.padding is not None and _speaks_of_something_else(subject.padding.name)
    if name == "padding-leak" and not change.by_values and _keys_have_positions(subject):
        unsure, reason = True, "The queries' positions may be counted from the last key."
    of_landmarks = LANDMARKS.search(prose_about(subject.target.callee)) is not None
    if name == "padding-leak" and not change.by_values and of_landmarks:
        unsure, reason = True, "Padding changes which tokens a landmark is the mean of."
    other = _other_mask_at(subject, line)
    if name == "padding-leak" and other:
        unsure, reason = True, f"{other}, which was not given, hides keys there."
    if name == "padding-leak" and _shortens(subject):
        unsure, reason = True, "The result has fewer rows than tokens; some may be of the padding."
    guess = _guess_showing_padding(subject) if name == "padding-leak" else None
    if guess is not None:
        unsure, reason = (
            True,
            f"{guess!r} has a value of ours, which shows the padding. {reason}".strip(),
        )
    if name == "padding-leak" and not reason and (pooling := pooling_line(evidence, subject, keep)):
        reason, line = "Padded tokens are pooled with the real ones.", pooling
    if name == "padding-leak" and _is_hidden_from_attentions(evidence, padded, keep):
        mixing = next((step for step in padded.trace if step.operation in CONVOLUTIONS), None)
        if mixing is not None:
            unsure, line = True, SourceLine.of(mixing)
            reason = (
                "Each attention hides the padding, but a convolution mixes it with real tokens."
            )
    return Finding(
        name,
        "suspicious" if unsure else "bug",
        f"{reason} {change.proof}".strip(),
        describe_sizes(evidence),
        line,
    )


def _speaks_of_something_else(name: str) -> bool:
    """Check whether an argument has a name, unlike the item `inputs[1]`, and it is none of padding."""
    return not re.search(r"\[\d+\]$", name) and not OF_PADDING.search(name.lower())


def _keys_have_positions(subject: Subject) -> bool:
    """Check whether the order of a second sequence matters, beside queries that are held."""
    if MEMORY not in subject.convention.constants.values() or not subject.convention.pooled:
        return False
    inputs = subject.draw(*(subject.fixed_sizes or (1, MORE_TOKENS)))
    arguments = {name: tensor.flip(1) for name, tensor in inputs.arguments.items()}
    one, other = subject.run(inputs), subject.run(replace(inputs, arguments=arguments))
    return bool(differing_entries(one.detach(), other.detach()).any())


def _other_mask_at(subject: Subject, line: SourceLine | None) -> str:
    """Return another mask of the target that a line names; "" if there is none."""
    others = () if line is None or subject.padding is None else masks_by_name(subject)
    named = (it for it in others if line is not None and re.search(rf"\b{it}\b", line.source))
    return next((it for it in named if subject.padding and it != subject.padding.name), "")


def _shortens(subject: Subject) -> bool:
    """Check whether the result has rows, but not one for each token, as behind a convolution with a stride."""
    if not subject.convention.pooled or subject.fixed_sizes is not None:
        return False
    few, many = (
        attempt(lambda T=T: subject.run(subject.draw(1, T))) for T in (MORE_TOKENS, 2 * MORE_TOKENS)
    )
    if not isinstance(few, Tensor) or not isinstance(many, Tensor):
        return False
    return few.shape[2:] != many.shape[2:]


def _guess_showing_padding(subject: Subject) -> str | None:
    """Return an argument of an unknown role that got a value for each pair of tokens, such as an adjacency of ones.

    It may also have got the weights of an earlier step, which a decoder would have made with the padding hidden.
    """
    convention, T = subject.convention, MORE_TOKENS
    for name, constant in convention.constants.items() if convention.is_unsure else ():
        if callable(constant) and (subject.padding is None or name != subject.padding.name):
            value = constant(1, T, torch.float64)
            axes = value.shape.count(T) if isinstance(value, Tensor) and value.any() else 0
            if axes > 1 or (axes and OF_EARLIER_STEP.search(name)):
                return name
    return None


def _is_hidden_from_attentions(evidence: Evidence, padded: Observation, keep: Tensor) -> bool:
    """Check whether no attention gives real tokens' queries any weight on padded keys."""
    attentions = list(find_attentions(padded))
    hides = (_hides_padding(evidence, *it, keep) for it in enumerate(attentions))
    return bool(attentions) and all(hides)


def _hides_padding(
    evidence: Evidence, index: int, attention: RecordedAttention, keep: Tensor
) -> bool:
    """Check whether an attention of tokens gives real tokens' queries no weight on padded keys."""
    rows = rows_of_entries(evidence, index, attention)
    if rows is None or attention.applied_weights.shape[1:] != (keep.shape[1],) * 2:
        return False
    return not any(
        attention.applied_weights[own][:, real][..., ~real].any()
        for own, real in zip(rows, keep, strict=True)
    )


def _line_counting_positions(subject: Subject, inputs: Inputs, keep: Tensor) -> SourceLine | None:
    """Return the line at which a run on the real tokens alone diverges from the run with padding before them."""
    start = int(keep.nonzero()[0])
    padded = subject.record(inputs, keep=keep[None])
    alone = PartialRun(subject.record(inputs.tokens(start, len(keep))), padded, start)
    differing = [step for step in alone.part.trace if alone.differs(step)]
    return alone.place(alone.origin(differing[-1])) if differing else None
