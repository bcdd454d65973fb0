"""The tokens that targets are run on."""

import pytest
import torch

from heedful.conformance.calling.convention import CallingConvention


@pytest.mark.parametrize("token", [(0, 0), (0, 1), (2, 6)])
@pytest.mark.parametrize("width", [4, 16, 24])
def test_a_changed_token_is_another_one(width, token):
    drawn = CallingConvention("(B, T, C)", ("x",), (width,)).draw(3, 7, torch.float64)
    changed = drawn.changed(*token)
    differs = changed.arguments["x"] != drawn.arguments["x"]
    expected = torch.zeros(3, 7, dtype=torch.bool)
    expected[token] = True
    assert torch.equal(differs.all(-1), expected)
    assert torch.equal(differs.any(-1), expected)
