"""Calls are made causal by a flag or by a mask from the caller, as the user wants it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from heedful.conformance import check
from heedful.conformance.calling.subject import find_subject


def switchable(query, key, value, is_causal=False):
    return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)


class MaskedByCaller(nn.Module):
    """Hides what its mask says, for any number of heads and queries."""

    def __init__(self, d_model=12):
        super().__init__()
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Unmasked(MaskedByCaller):
    """Has no use for its mask."""

    def forward(self, x, mask=None):
        return super().forward(x)


def test_a_target_that_leaves_its_mask_to_the_caller_gets_a_causal_one():
    assert not check(MaskedByCaller, causal=True).bugs
    assert "mask-unused" in {bug.name for bug in check(Unmasked, causal=True).bugs}


@pytest.mark.parametrize(
    "target",
    [
        *(switchable, nn.MultiheadAttention(12, 4), nn.TransformerEncoderLayer(12, 4, 20)),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(12, 4, 20, batch_first=True), 2),
        MaskedByCaller(),
    ],
    ids=lambda it: getattr(it, "__name__", type(it).__name__),
)
@pytest.mark.parametrize("causal", [None, False, True])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # only of the first call
def test_calls_are_causal_exactly_if_requested(target, causal):
    subject = find_subject(target, causal=causal)
    inputs = subject.draw(2, 6)
    earlier, later = (subject.run(it)[0, :5] for it in (inputs, inputs.changed(0, 5)))
    assert torch.allclose(earlier, later) == bool(causal)
    keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    if subject.padding is not None:
        alone = subject.run(inputs.entry(1).tokens(0, 4))
        torch.testing.assert_close(subject.run(inputs, keep=keep)[1:, :4], alone)
