"""The maximum number of tokens is read from a module's tables and attributes, and confirmed by trial."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from conformance.calling.attentions import Projected, Slots, small_gpt
from heedful.conformance.calling.subject import find_subject
from heedful.gpt.config import GPTConfig
from heedful.textbook import causal


class Learned(Projected):
    def __init__(self, d_model, max_tokens):
        super().__init__(d_model)
        self.positions = nn.Parameter(torch.randn(max_tokens, d_model))

    def forward(self, x):
        return super().forward(x + self.positions[: x.shape[1]])


class CountsRealItems(nn.Module):
    """Items that a user has seen, 0 for padding, which has position 0; the first item is at position 1."""

    def __init__(self, items=20, width=24, max_items=9):
        super().__init__()
        self.embedding = nn.Embedding(items, width, padding_idx=0)
        self.positions = nn.Embedding(max_items + 1, width, padding_idx=0)
        self.attention = Projected(width)

    def forward(self, ids):
        real = ids != 0
        return self.attention(self.embedding(ids) + self.positions(real.cumsum(1) * real))


class FailsWhenFull(Learned):
    """Fails with as many tokens as its table of positions has rows, which is a bug and no maximum."""

    def forward(self, x):
        return super().forward(x[:, :4] if x.shape[1] == len(self.positions) else x)


class InBlocks(Projected):
    """Has a size of blocks, which is no maximum of the tokens."""

    def __init__(self, width=24, block_size=4):
        super().__init__(width)
        self.block_size = block_size


@pytest.mark.parametrize(
    ("target", "max_length"),
    [
        (Projected(24), None),
        (Learned(24, 9), 9),
        (Slots(24, 3, 11), 11),
        (causal.CausalAttention(6, 6, context_length=13), 13),
        (small_gpt(GPTConfig.gpt2), 16),
        (CountsRealItems(), 9),
        (FailsWhenFull(24, 9), None),
        (InBlocks(), None),
    ],
)
def test_the_maximum_length_is_found(target, max_length):
    assert find_subject(target).max_length == max_length
