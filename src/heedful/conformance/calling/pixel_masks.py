"""Give masks of the pixels of a feature map that is not the tokens, such as the keys of a decoder that reads images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.roles import FEATURE_MAP
from heedful.conformance.recording.differences import differing_entries

SIZES = (2, 5)  # B and T of a trial


def with_pixel_masks(caller: Caller) -> Caller:
    """Return a caller that also gives each optional mask (B, Y, X) of a feature map among its constants.

    Such a mask shows every pixel: the output is the one without it, and it is another one if half of the pixels are
    hidden.
    """
    pixels = _pixels(caller)
    names = [] if pixels is None else [it for it in caller.parameters if "mask" in it.lower()]
    for name in (name for name in names if name not in caller.convention.constants):
        for shown in (True, False):
            whole, half = (
                _given(caller, name, _mask(pixels or (), shown, hide)) for hide in (0, 2)
            )
            outputs = [attempt(lambda it=it: _output(it)) for it in (caller, whole, half)]
            if any(isinstance(it, Exception) for it in outputs):
                continue
            plain, shows, hides = outputs
            same = not differing_entries(plain, shows).any()
            if same and differing_entries(plain, hides).any():
                caller = whole
                break
    return caller


def _pixels(caller: Caller) -> tuple[int, ...] | None:
    """Return the height and width of the feature map among the constants of a caller; None if there is none."""
    made = (it(1, 1, torch.float32) for it in caller.convention.constants.values() if callable(it))
    maps = (it for it in made if isinstance(it, Tensor) and it.dim() == FEATURE_MAP)
    return next((tuple(it.shape[2:]) for it in maps if it.is_floating_point()), None)


def _mask(pixels: tuple[int, ...], shown: bool, hide: int) -> Callable[..., Tensor]:
    """Return a function of (B, T, dtype) that makes a mask in which some columns of pixels are hidden."""

    def constant(B: int, T: int, dtype: torch.dtype) -> Tensor:
        mask = torch.full((B, *pixels), shown)
        mask[..., :hide] = not shown
        return mask

    return constant


def _given(caller: Caller, name: str, value: Callable[..., Tensor]) -> Caller:
    constants = {**caller.convention.constants, name: value}
    return replace(caller, convention=replace(caller.convention, constants=constants))


def _output(caller: Caller) -> Tensor:
    with torch.no_grad():
        return caller.run(caller.draw(*SIZES))
