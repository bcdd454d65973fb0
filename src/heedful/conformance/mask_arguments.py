"""Arguments that are masks: which forms they take, and which keys True keeps, found out by trying."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heedful.conformance.changes import differing
from heedful.conformance.subject import Inputs, MaskArgument

if TYPE_CHECKING:
    from heedful.conformance.calling import Called

PADDING_NAMES = (
    *("key_padding_mask", "src_key_padding_mask", "padding_mask", "pad_mask", "attention_mask"),
    *("key_mask", "src_mask", "x_mask", "mask", "attn_mask", "token_mask", "valid_mask"),
)
ATTENDING_NAMES = ("attn_mask", "src_mask", "attention_mask", "mask", "causal_mask")
DECLARED = {"key_padding_mask": False, "src_key_padding_mask": False, "attention_mask": True}
PADDING_FORMS = ("(B, T)", "(B, 1, 1, T)", "(B, 1, T)", "(B, 1, T, T)")
ATTENDING_FORMS = ("(T, T)", "(1, 1, T, T)", "(B, 1, T, T)", "(B, T, T)")

HIDDEN, SEEN, LOOKING = (
    2,
    1,
    4,
)  # the token that the trial hides, one that it does not, and the row that is looked at


def find_masks(subject: Called) -> tuple[MaskArgument | None, MaskArgument | None]:
    """How a subject is told which tokens are real, and how which query may see which key."""
    names = subject.parameters
    padding = [it for it in PADDING_NAMES if it in names]
    attending = [it for it in ATTENDING_NAMES if it in names]
    return (
        _find(subject, padding, PADDING_FORMS),
        _find(subject, attending, ATTENDING_FORMS),
    )


def _find(subject: Called, names: list[str], forms: tuple[str, ...]) -> MaskArgument | None:
    """The first argument and form that runs and hides a key; failing that, the first that runs at all."""
    running: MaskArgument | None = None
    for name in names:
        for dtype in (torch.bool, subject.dtype, torch.int64):
            for form in forms:
                found = _tried(subject, MaskArgument(name, form, dtype, True, DECLARED.get(name)))
                if found is not None and found.effective and found.hides:
                    return found
                if found is not None and (running is None or found.effective > running.effective):
                    running = found
    return running


def _tried(subject: Called, argument: MaskArgument) -> MaskArgument | None:
    """Hide one token: the argument as it proves to work; None if it does not run."""
    B = 2 if subject.batched else 1
    inputs = subject.draw(B, 5)
    if subject.longest is not None and subject.longest < 5:
        return None
    try:
        with torch.no_grad():
            plain, hidden = (
                _run(subject, inputs, argument, hide=False),
                _run(subject, inputs, argument, hide=True),
            )
            by_hidden, by_seen = (
                differing(
                    _run(subject, inputs.changed(B - 1, t), argument, hide=True), hidden
                ).any()
                for t in (HIDDEN, SEEN)
            )
    except Exception:  # noqa: BLE001 - a form that the target does not take
        return None
    effective = bool(differing(plain, hidden).any())
    if by_hidden and not by_seen:
        return MaskArgument(argument.name, argument.form, argument.dtype, False, argument.declared)
    hides = bool(by_seen and not by_hidden)
    return MaskArgument(
        argument.name, argument.form, argument.dtype, argument.declared is not False or hides,
        argument.declared, effective, hides,
    )  # fmt: skip


def _run(subject: Called, inputs: Inputs, argument: MaskArgument, *, hide: bool) -> Tensor:
    """The row that is looked at, of the last batch entry."""
    B, T = inputs.sizes
    mask = torch.ones((T, T) if argument.form in ATTENDING_FORMS[:2] else (B, T), dtype=torch.bool)
    if _is_square(argument):
        mask = torch.ones(T, T, dtype=torch.bool)
        mask[LOOKING, HIDDEN] = not hide
    else:
        mask[-1, HIDDEN] = not hide
    given = subject.given(inputs) | {
        argument.name: mask_value(argument, mask, inputs.sizes, subject.dtype)
    }
    return subject.rows(subject.callee(**given), inputs)[-1, LOOKING]


def _is_square(argument: MaskArgument) -> bool:
    return argument.form in ATTENDING_FORMS


def mask_value(
    argument: MaskArgument, mask: Tensor, sizes: tuple[int, int], dtype: torch.dtype
) -> Any:
    """A Boolean mask, True for what is kept, as an argument wants it.

    Args:
        argument: which one.
        mask: (B, T), or (T, T).
        sizes: B and T.
        dtype: of additive masks.
    """
    B, T = sizes
    kept = mask if argument.true_keeps else ~mask
    if argument.form in ("(B, T)", "(T, T)"):
        value = kept
    elif mask.shape == (T, T) and argument.form in ATTENDING_FORMS:
        value = {"(1, 1, T, T)": kept[None, None], "(B, 1, T, T)": kept.expand(B, 1, T, T), "(B, T, T)": kept.expand(B, T, T)}[argument.form]  # fmt: skip
    else:
        value = {"(B, 1, 1, T)": kept[:, None, None], "(B, 1, T)": kept[:, None], "(B, 1, T, T)": kept[:, None, None].expand(B, 1, T, T)}[argument.form]  # fmt: skip
    if argument.dtype == torch.bool:
        return value
    if argument.dtype == torch.int64:
        return value.long()
    seen = value if argument.true_keeps else ~value
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min / 2)
