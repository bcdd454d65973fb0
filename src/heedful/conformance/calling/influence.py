"""Decide whether a token influences a row of the output, or another sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heedful.conformance.calling.caller import Caller
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.recording.differences import differing_entries
from heedful.conformance.recording.inputs import Inputs


def influences(
    caller: Caller,
    inputs: Inputs,
    token: int,
    rows: Any,
    *,
    keep: Tensor | None = None,
    attend: Tensor | None = None,
) -> bool | None:
    """Check whether another token at one place of the first sequence changes some rows; None if a call fails.

    Args:
        caller: The caller.
        inputs: The tokens (B, T, …).
        token: The place of the token that is changed.
        rows: An index into the output (B, T, …).
        keep: (B, T) Boolean, which tokens are real; None if all are.
        attend: (T, T) Boolean, which key each query may see; None for the mask of the convention, if it has one.
    """
    with torch.no_grad():
        before, after = (
            attempt(lambda it=it: caller.run(it, keep=keep, attend=attend)[rows])
            for it in (inputs, inputs.changed(0, token))
        )
    if not isinstance(before, Tensor) or not isinstance(after, Tensor):
        return None
    return bool(differing_entries(before, after).any())


def mixes_sequences(caller: Caller, inputs: Inputs) -> bool | None:
    """Check whether a change of the first sequence reaches another one; None if a call fails."""
    return influences(caller, inputs, 0, rows=slice(1, None))
