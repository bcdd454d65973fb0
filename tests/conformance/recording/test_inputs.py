"""Inputs of a run, and changes of single tokens."""

from __future__ import annotations

import pytest
import torch

from heedful.conformance.calling.convention import CallingConvention


@pytest.mark.parametrize("size", [4, 16, 24, 32])
def test_every_changed_token_is_another_one(size):
    convention = CallingConvention("(B, T, C)", ("x",), (size,))
    inputs = convention.draw(2, 3, torch.float64)
    for b, t in [(b, t) for b in range(2) for t in range(3)]:
        changed = inputs.changed(b, t).arguments["x"] != inputs.arguments["x"]
        assert changed[b, t].all()
        changed[b, t] = False
        assert not changed.any()
