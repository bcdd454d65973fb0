"""A larger feature map, where that of the first call that works is pooled to a single pixel, which is the only key."""

from __future__ import annotations

from dataclasses import replace

import torch

from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.conventional import IMAGE_LENGTHS
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.influence import mixes_sequences
from heedful.conformance.recording.dataflow import has_single_key
from heedful.observation import Trace

SIZES = (3, 5)  # B and T of a call


def with_larger_map(caller: Caller) -> Caller:
    """Return a caller with a larger map if every softmax has a single key, and only then has several.

    Sequences that mix in it show that its layout is a wrong guess: an axis had one pixel before.
    """
    B, T = caller.fixed_sizes or SIZES
    if not caller.convention.is_image or _has_single_key(caller, B, T) is not True:
        return caller
    for pixels in (it for it in IMAGE_LENGTHS if it > T):
        convention = replace(caller.convention, fixed_sizes=(B, pixels))
        larger = replace(caller, convention=convention)
        mixes = mixes_sequences(larger, larger.draw(B, pixels))
        if mixes is False and _has_single_key(larger, B, pixels) is False:
            return larger
    return caller


def _has_single_key(caller: Caller, B: int, T: int) -> bool | None:
    """Check whether every softmax of a call has a single key; None if the call fails."""
    arguments = caller.arguments(caller.draw(B, T))
    with torch.no_grad(), caller.isolated():
        trace = attempt(lambda: caller.trace(arguments))
    return has_single_key(trace) if isinstance(trace, Trace) else None
