"""Find the argument by which a target takes the positions of its tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.conformance.calling import names
from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.recording.differences import differing_entries

POSITIONS = 4  # tokens on which it is tried


def find_positions(caller: Caller) -> str | None:
    """Return the argument that takes a position per token, such that 0, 1, 2, … change nothing."""
    inputs = caller.draw(2 if caller.batched else 1, POSITIONS)
    B, T = inputs.sizes
    for name in (name for name in names.POSITION_IDS if name in caller.parameters):
        with torch.no_grad():
            plain = caller.arguments(inputs)
            counted = plain | {name: torch.arange(T).repeat(B, 1)}
            default, output = (
                attempt(lambda given=given: caller.call(given, inputs))
                for given in (plain, counted)
            )
        if not isinstance(default, Tensor) or not isinstance(output, Tensor):
            continue
        if not differing_entries(default, output).any():
            return name
    return None
