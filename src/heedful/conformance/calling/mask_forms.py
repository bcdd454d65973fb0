"""The forms in which targets take masks, and one mask put into each of them."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.conformance.recording.inputs import MaskArgument

PADDING_FORMS = ("(B, T)", "(B, 1, 1, T)", "(B, 1, T)", "(B, T, T)", "(B, 1, T, T)")
ATTENDING_FORMS = ("(T, T)", "(1, 1, T, T)", "(B, T, T)", "(B, 1, T, T)")
LENGTHS = "(B,)"  # how many tokens are real, the first ones

# What a name means by convention: whether True, or 1, is seen. transformers' attention_mask, torch's key_padding_mask.
DECLARED = {
    "attention_mask": True,
    "key_padding_mask": False,
    "src_key_padding_mask": False,
    "tgt_key_padding_mask": False,
}


def as_given(argument: MaskArgument, visible: Tensor, B: int, dtype: torch.dtype) -> Tensor:
    """A mask as an argument takes it.

    Args:
        argument: which form, dtype and polarity.
        visible: (B or 1, Tq, Tk) Boolean, True for what is seen; a form without queries takes the first one's.
        B: how many sequences there are.
        dtype: of additive masks.
    """
    shaped = shaped_as(argument.form, visible, B)
    if argument.form == LENGTHS:
        return shaped
    if argument.dtype.is_floating_point:
        # Half the smallest number: two masks on one key still add up to a number.
        return torch.zeros(shaped.shape, dtype=dtype).masked_fill(
            ~shaped, torch.finfo(dtype).min / 2
        )
    return (shaped if argument.true_keeps else ~shaped).to(argument.dtype)


def shaped_as(form: str, visible: Tensor, B: int) -> Tensor:
    """A mask (B or 1, Tq, Tk) in a form; for lengths how many keys are seen."""
    Tk = visible.shape[-1]
    match form:
        case "(B,)":
            return visible[:, 0].sum(-1).expand(B)
        case "(B, T)":
            return visible[:, 0].expand(B, Tk)
        case "(B, 1, T)":
            return visible[:, :1].expand(B, 1, Tk)
        case "(B, 1, 1, T)":
            return visible[:, None, :1].expand(B, 1, 1, Tk)
        case "(T, T)":
            return visible[0]
        case "(1, 1, T, T)":
            return visible[:, None]
    each = visible.expand(B, visible.shape[1], Tk)
    return each if form == "(B, T, T)" else each[:, None]
