"""Masks that a target makes itself around its tokens: those that show the surroundings alone are inverted."""

from __future__ import annotations

import pytest
from attentions_with_caches import written

from heedful.conformance import check

# Each token attends to its neighbors; the ends of the sequence are padded with zeros.
NEIGHBORS = """
import torch
import torch.nn.functional as F
from torch import nn

class Attention(nn.Module):
    def __init__(self, channels, radius=3):
        super().__init__()
        self.radius = radius
        self.query, self.key, self.value = (nn.Linear(channels, channels) for _ in range(3))

    def forward(self, x):
        B, T, C = x.shape
        r = self.radius
        x_padded = F.pad(x, (0, 0, r, r))
        around = x_padded.unfold(1, 2 * r + 1, 1).transpose(2, 3)
        inside = F.pad(torch.ones(T), (r, r)).unfold(0, 2 * r + 1, 1).bool()
        q, k, v = self.query(x).unsqueeze(2), self.key(around), self.value(around)
        logits = (q @ k.mT) * C**-0.5
        logits = logits.masked_fill(~inside[:, None], -1e30)
        return (logits.softmax(-1) @ v).squeeze(2)
"""

# Every query may also attend to a learned key, which stands for nothing.
LEARNED_KEY = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(channels, channels) for _ in range(3))
        self.null = nn.Parameter(torch.randn(1, 1, channels))

    def forward(self, x):
        B, T, C = x.shape
        with_null = torch.cat([self.null.expand(B, -1, -1), x], dim=1)
        q, k, v = self.query(x), self.key(with_null), self.value(with_null)
        hidden = torch.ones(T, T + 1, dtype=torch.bool).triu(2)
        return (q @ k.mT * C**-0.5).masked_fill(hidden, -1e30).softmax(-1) @ v
"""


@pytest.mark.parametrize(
    ("source", "old", "new", "line"),
    [
        (NEIGHBORS, "~inside", "inside", "-1e30"),
        (LEARNED_KEY, "triu(2)", "triu(2) | (torch.arange(T + 1) > 0)", "-1e30"),
    ],
)
def test_a_mask_that_shows_the_surroundings_alone_is_inverted(tmp_path, source, old, new, line):
    with written(tmp_path, source.replace(old, new)) as target:
        bugs = [bug for bug in check(target(16)).bugs if bug.name == "mask-inverted"]
    assert bugs
    assert bugs[0].place is not None
    assert line in bugs[0].place.source


@pytest.mark.parametrize("source", [NEIGHBORS, LEARNED_KEY])
def test_surroundings_that_are_hidden_or_seen_beside_tokens_are_no_bug(tmp_path, source):
    with written(tmp_path, source) as target:
        assert check(target(16)).bugs == ()
