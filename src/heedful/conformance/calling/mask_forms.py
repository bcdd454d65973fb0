"""Masks as arguments of a target: which arguments take them, and the tensor that each expects."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from heedful.errors import ArgumentError

HEADS_LAST = "(B, T, T, 1)"  # of scores whose heads come last
PADDING_FORMS = ("(B, T)", "(B, 1, 1, T)", "(B, 1, T)", "(B, T, T)", "(B, 1, T, T)", HEADS_LAST)
ATTENTION_FORMS = (
    *("(T, T)", "(1, 1, T, T)", "(B, T, T)", "(B, 1, T, T)", "(T, T, B)", HEADS_LAST),
)
LENGTHS = "(B,)"  # the number of real tokens, which come first
AFTER_FIRST = (
    "(B, T - 1)"  # of the tokens after one that is always visible, such as the class token
)


@dataclass(frozen=True)
class MaskArgument:
    """An argument that takes a mask.

    Attributes:
        name: Its name in the target's signature.
        form: The shape of the mask, such as "(B, T)", "(T, T)" or "(B, 1, 1, T)".
        dtype: torch.bool; int64 for 1 and 0; or a floating dtype for a mask that is added to the scores.
        true_keeps: Whether True, or 1, means that a token is visible.
        declared: The polarity that the docstring states, or that the name means by convention (True for
            attention_mask, False for key_padding_mask); None if neither tells.
        effective: Whether the mask changes the output at all.
        hides: Whether a hidden token no longer affects the output.
    """

    name: str
    form: str
    dtype: torch.dtype
    true_keeps: bool
    declared: bool | None = None
    effective: bool = True
    hides: bool = True


@dataclass(frozen=True)
class Masks:
    """The arguments by which a target takes masks.

    Attributes:
        padding: The argument that tells real tokens from padding; None if there is none.
        attention_mask: The argument that tells which key each query may see; None if there is none.
        positions: The argument that takes the position of each token, (B, T) int64; None if there is none.
        weak: Further arguments that tell real tokens from padding, but do not hide it.
    """

    padding: MaskArgument | None = None
    attention_mask: MaskArgument | None = None
    positions: str | None = None
    weak: tuple[MaskArgument, ...] = ()

    def arguments(
        self,
        sizes: tuple[int, int],
        dtype: torch.dtype,
        *,
        keep: Tensor | None,
        attend: Tensor | None,
        required: Collection[str],
    ) -> dict[str, Tensor]:
        """Return the mask arguments of a call, by name.

        Args:
            sizes: B and T.
            dtype: The dtype of additive masks.
            keep: (B, T) Boolean, which tokens are real; None if all are.
            attend: (T, T) Boolean, which key each query may see; None if the call needs no such mask.
            required: The arguments that have no default; a mask among them shows everything if nothing is hidden.

        Raises:
            ArgumentError: The target has no argument for one of the masks.
        """
        B, T = sizes
        visible: dict[str, tuple[MaskArgument, Tensor]] = {}
        if keep is not None:
            padding = self._padding_argument()
            _check_lengths(padding, keep)
            visible[padding.name] = padding, keep[:, None].expand(-1, T, -1)
        if attend is not None:
            attention = _existing(self.attention_mask, "attention_mask")
            if attention.name in visible:
                padding, real = visible[attention.name]
                visible[attention.name] = _combined(padding, attention), real & attend
            else:
                visible[attention.name] = attention, attend[None]
        for argument in (self.padding, self.attention_mask):
            if argument is not None and argument.name in required:
                everything = torch.ones(1, T, T, dtype=torch.bool)
                visible.setdefault(argument.name, (argument, everything))
        masks = {name: mask_tensor(*mask, B, dtype) for name, mask in visible.items()}
        return masks if keep is None else masks | self._position_arguments(keep, new=T)

    def chunk_arguments(self, keep: Tensor, new: int, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the padding mask of all tokens so far, (B, T), and the positions of the newest ones.

        Raises:
            ArgumentError: The target has no argument for a padding mask.
        """
        padding = self._padding_argument()
        mask = mask_tensor(padding, keep[:, None], len(keep), dtype)
        return {padding.name: mask} | self._position_arguments(keep, new)

    def _padding_argument(self) -> MaskArgument:
        return _existing(self.padding, "padding")

    def _position_arguments(self, keep: Tensor, new: int) -> dict[str, Tensor]:
        """Return the positions of the newest tokens, counted over real tokens alone."""
        if self.positions is None:
            return {}
        return {self.positions: (keep.long().cumsum(-1) - 1).clamp_min(0)[:, -new:]}


def mask_tensor(argument: MaskArgument, visible: Tensor, B: int, dtype: torch.dtype) -> Tensor:
    """Return a mask as its argument expects it.

    Args:
        argument: Its form, dtype and polarity.
        visible: (B or 1, Tq, Tk) Boolean, True for visible keys; a form without queries takes those of the first.
        B: The number of sequences.
        dtype: The dtype of additive masks.
    """
    mask = in_form(argument.form, visible, B)
    if argument.form == LENGTHS:
        return mask
    if argument.dtype.is_floating_point:
        # Half the most negative number, so that the sum of two masks is still finite.
        lowest = torch.finfo(dtype).min / 2
        return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, lowest)
    return (mask if argument.true_keeps else ~mask).to(argument.dtype)


def combined_with(given: object, argument: MaskArgument, mask: Tensor) -> Tensor:
    """Return a mask that also hides what an example's mask for the same argument hides."""
    if not isinstance(given, Tensor) or argument.form == LENGTHS:
        return mask
    if argument.true_keeps or argument.dtype.is_floating_point:
        return torch.minimum(given, mask.to(given.dtype))
    return torch.maximum(given, mask.to(given.dtype))


def in_form(form: str, visible: Tensor, B: int) -> Tensor:
    """Return a mask (B or 1, Tq, Tk) in a form, or the number of visible keys for lengths."""
    Tk = visible.shape[-1]
    match form:
        case "(B,)":
            return visible[:, 0].sum(-1).expand(B)
        case "(B, T)":
            return visible[:, 0].expand(B, Tk)
        case "(B, T - 1)":
            return visible[:, 0, 1:].expand(B, Tk - 1)
        case "(B, 1, T)":
            return visible[:, :1].expand(B, 1, Tk)
        case "(B, 1, 1, T)":
            return visible[:, None, :1].expand(B, 1, 1, Tk)
        case "(T, T)":
            return visible[0]
        case "(1, 1, T, T)":
            return visible[:, None]
    batch = visible.expand(B, visible.shape[1], Tk)
    if form == "(T, T, B)":
        return batch.movedim(0, -1)
    if form == HEADS_LAST:
        return batch[..., None]
    return batch if form == "(B, T, T)" else batch[:, None]


def _combined(padding: MaskArgument, attention: MaskArgument) -> MaskArgument:
    """Return the form of one argument that takes a padding mask and an attention mask at once."""
    if attention.form.startswith("(B") or attention.form.endswith("B)"):
        return attention
    four_axes = "(1, 1, T, T)" in (padding.form, attention.form) or padding.form.count(",") == 3
    return replace(attention, form="(B, 1, T, T)" if four_axes else "(B, T, T)")


def _existing(argument: MaskArgument | None, name: str) -> MaskArgument:
    if argument is None:
        raise ArgumentError(
            name,
            expected=f"a subject whose {name!r} is an argument",
            received="one without such an argument",
            remedy=f"Check that the subject's attribute {name!r} is not None.",
        )
    return argument


def _check_lengths(argument: MaskArgument, keep: Tensor) -> None:
    if argument.form == LENGTHS and bool((~keep[:, :-1] & keep[:, 1:]).any()):
        raise ArgumentError(
            "keep",
            expected="real tokens first, because the target takes only their number",
            received=f"{keep.tolist()}",
            remedy="Check the form of the subject's padding argument.",
        )
