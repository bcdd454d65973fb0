"""Arguments that are masks: which forms they take, and whether True keeps or hides, found out by trying."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from heedful.conformance.calling.arguments import of_torch
from heedful.conformance.calling.mask_forms import (
    ATTENDING_FORMS,
    DECLARED,
    LENGTHS,
    PADDING_FORMS,
    as_given,
)
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.inputs import Inputs, MaskArgument
from heedful.errors import ArgumentError

if TYPE_CHECKING:
    from heedful.conformance.calling.subject import Subject

PADDING_NAMES = (
    *("key_padding_mask", "src_key_padding_mask", "tgt_key_padding_mask", "padding_mask"),
    *("pad_mask", "attention_mask", "key_mask", "x_mask", "input_mask", "token_mask"),
    *("valid_mask", "src_mask", "mask", "masks", "attn_mask", "context_mask", "kv_mask"),
    *("memory_key_padding_mask", "memory_mask", "encoder_attention_mask", "cross_attention_mask"),
)
ATTENDING_NAMES = ("attn_mask", "src_mask", "tgt_mask", "attention_mask", "mask", "causal_mask")
LENGTH_NAMES = ("lengths", "lens", "seq_lens", "valid_lens", "valid_len", "valid_lengths")
TOKENS = 5
FAINT = 1e-2  # how much of a token's effect may be left of one that is hidden, if not well


class _Trial(NamedTuple):
    """A form of a mask, tried.

    Attributes:
        argument: the form.
        hidden: how much of a hidden token's effect is left.
    """

    argument: MaskArgument
    hidden: float


def find_masks(subject: Subject) -> tuple[MaskArgument | None, MaskArgument | None]:
    """How a subject is told which tokens are real, and how which query may see which key; None if it is not."""
    if subject.max_length is not None and subject.max_length < TOKENS:
        return None, None
    names = subject.parameters
    padding = _first_fitting(subject, _forms(names, PADDING_NAMES, PADDING_FORMS, subject.dtype))
    if padding is None or not padding.effective:
        lengths = (
            MaskArgument(it, LENGTHS, torch.int64, True) for it in LENGTH_NAMES if it in names
        )
        padding = _first_fitting(subject, lengths) or padding
    by_caller = subject.convention.visible_keys is not None and not of_torch(subject.module)
    shapes = ATTENDING_FORMS[::-1] if by_caller else ATTENDING_FORMS  # made for all heads at once
    forms = _forms(names, ATTENDING_NAMES, shapes, subject.dtype)
    attention_mask = _first_fitting(subject, forms)
    if padding is None or attention_mask is None or padding.name != attention_mask.name:
        return padding, attention_mask
    if padding.effective == attention_mask.effective:
        return padding, attention_mask
    return (
        (padding, None) if padding.effective else (None, attention_mask)
    )  # a mask of one kind alone


def _forms(
    names: tuple[str, ...], known: tuple[str, ...], forms: tuple[str, ...], dtype: torch.dtype
) -> Iterator[MaskArgument]:
    """What may be tried, the likeliest first."""
    for name in (it for it in known if it in names):
        declared = DECLARED.get(name)
        for kind in (torch.bool, torch.int64, dtype):
            for form in forms:
                for keeps in (
                    (True,)
                    if kind.is_floating_point
                    else (declared is not False, declared is False)
                ):
                    yield MaskArgument(name, form, kind, keeps, declared)


def _first_fitting(subject: Subject, forms: Iterator[MaskArgument]) -> MaskArgument | None:
    """The first that hides a token, be it imperfectly; else the first with any effect; else the first that runs."""
    running: list[_Trial] = []
    for argument in forms:
        trial = _tried(subject, argument)
        if trial is not None and trial.argument.effective and trial.hidden < FAINT:
            return trial.argument
        if trial is not None and argument.form != LENGTHS:
            running.append(trial)
    running.sort(key=lambda trial: not trial.argument.effective)
    return running[0].argument if running else None


def _tried(subject: Subject, argument: MaskArgument) -> _Trial | None:
    """Hide one token, change it, and look at a row that should not notice; None if the form does not run."""
    B = 2 if subject.batched else 1
    inputs = subject.draw(B, TOKENS)
    # Those of the last queries see what is before them in causal modules too; of lengths the last token is hidden.
    looking, hidden = (0, -1) if argument.form == LENGTHS else (-1, -2)
    changed = inputs.changed(B - 1, hidden % TOKENS)
    seen = _all_seen(argument, B)
    masked = seen.clone()
    masked[-1, 2 * (argument.form in ATTENDING_FORMS) :, hidden] = False
    masked |= torch.eye(
        TOKENS, dtype=torch.bool
    )  # what sees itself alone in all layers stays apart
    try:
        with torch.no_grad():
            all_seen, one_hidden = (_run(subject, inputs, argument, it) for it in (seen, masked))
            seen_changed, hidden_changed = (
                _run(subject, changed, argument, it) for it in (seen, masked)
            )
    except Exception:  # noqa: BLE001 - a form that the target does not take
        return None
    effect = (seen_changed - all_seen)[looking].abs().max().item()
    left = (hidden_changed - one_hidden)[looking].abs().max().item()
    share = left / effect if effect > 0 else float("nan")
    hides = not differing_entries(one_hidden[looking], hidden_changed[looking]).any()
    effective = bool(differing_entries(all_seen, one_hidden).any())
    return _Trial(replace(argument, effective=effective, hides=hides and effect > 0), share)


def _all_seen(argument: MaskArgument, B: int) -> Tensor:
    """Of padding everything; where each query has a row, the first two see all and the others one another.

    So that a padding mask, in which the first rows stand for batch entries, has no effect.
    """
    if argument.form not in ATTENDING_FORMS:
        return torch.ones(B, TOKENS, TOKENS, dtype=torch.bool)
    seen = torch.ones(1, TOKENS, TOKENS, dtype=torch.bool)
    seen[:, 2:, :2] = False
    return seen


def _run(subject: Subject, inputs: Inputs, argument: MaskArgument, visible: Tensor) -> Tensor:
    """The last batch entry's rows (T, …)."""
    B = inputs.sizes[0]
    mask = as_given(argument, visible, B, subject.dtype)
    return subject.call(subject.arguments(inputs) | {argument.name: mask}, inputs)[-1]


def masks_told(
    subject: Subject, sizes: tuple[int, int], keep: Tensor | None, attend: Tensor | None
) -> dict[str, Tensor]:
    """The arguments that tell a subject which tokens are real and which key each query may see, by name.

    Args:
        subject: whom to tell.
        sizes: B and T.
        keep: (B, T) Boolean, or None.
        attend: (T, T) Boolean, or None.

    Raises:
        ArgumentError: it cannot be told so.
    """
    told: dict[str, tuple[MaskArgument, Tensor]] = {}
    if keep is not None:
        argument = known(subject.padding, "padding", "which tokens are real")
        _check_lengths(argument, keep)
        told[argument.name] = argument, keep[:, None].expand(-1, sizes[1], -1)
    if attend is not None:
        argument = known(subject.attention_mask, "attention_mask", "which query may see which key")
        if argument.name in told:
            padding, visible = told[argument.name]
            told[argument.name] = _joint(padding, argument), visible & attend
        else:
            told[argument.name] = argument, attend[None]
    for argument in (subject.padding, subject.attention_mask):
        if argument is not None and argument.name in subject.convention.constants:
            all_seen = torch.ones(1, sizes[1], sizes[1], dtype=torch.bool)
            told.setdefault(argument.name, (argument, all_seen))  # it has to be given
    return {
        name: as_given(argument, visible, sizes[0], subject.dtype)
        for name, (argument, visible) in told.items()
    }


def _joint(padding: MaskArgument, attention_mask: MaskArgument) -> MaskArgument:
    """How one argument takes a mask of its own for every sequence and every query."""
    if attention_mask.form.startswith("(B"):
        return attention_mask
    by_heads = "(1, 1, T, T)" in (padding.form, attention_mask.form) or padding.form.count(",") == 3
    return replace(attention_mask, form="(B, 1, T, T)" if by_heads else "(B, T, T)")


def known(argument: MaskArgument | None, name: str, what: str) -> MaskArgument:
    if argument is None:
        raise ArgumentError(
            name,
            expected=f"a subject that can be told {what}",
            received="one that takes no such mask",
            remedy=f"Ask its attribute {name!r} first.",
        )
    return argument


def _check_lengths(argument: MaskArgument, keep: Tensor) -> None:
    if argument.form == LENGTHS and bool((~keep[:, :-1] & keep[:, 1:]).any()):
        raise ArgumentError(
            "keep",
            expected="real tokens first: the subject is told their number alone",
            received=f"{keep.tolist()}",
            remedy="Look at padding.form first.",
        )
