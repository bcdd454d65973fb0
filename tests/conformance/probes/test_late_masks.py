"""Weights that compare no queries with keys, and that a mask hides after their softmax."""

import pytest
from attentions_with_caches import written

from heedful import check

# Each landmark of a fixed set reads the other ones, by scores that a layer gives to pairs of them.
PAIRS = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.left, self.right, self.value = nn.Linear(dim, 1), nn.Linear(dim, 1), nn.Linear(dim, dim)
        self.gate = nn.Linear(dim, 1)

    def forward(self, x):
        '''x: (batch, tokens, features)'''
        others = 1 - torch.eye(x.shape[1], dtype=x.dtype)
        scores = torch.tanh(self.left(x) + self.right(x).mT)
        weights = torch.softmax(scores, dim=-1)
        weights = weights * others
        return (weights[..., None] * self.value(x)[:, None]).sum(2)
"""
LATE = "        weights = weights * others\n"


def found_in(tmp_path, source):
    with written(tmp_path, source) as attention:
        return {finding.name: finding for finding in check(attention).bugs}


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("", "", "weights * others"),
        ("weights * others", "weights.masked_fill(others == 0, 0)", "weights.masked_fill"),
        (
            "(weights[..., None] * self.value(x)[:, None]).sum(2)",
            "weights @ self.value(x)",
            "weights * others",
        ),
    ],
)
def test_a_mask_after_the_softmax_is_named_on_its_line(tmp_path, old, new, line):
    assert old in PAIRS
    bug = found_in(tmp_path, PAIRS.replace(old, new) if old else PAIRS)["mask-after-softmax"]
    assert line in bug.place.source


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (LATE, ""),
        (LATE, LATE + "        weights = weights / weights.sum(-1, keepdim=True)\n"),
        (LATE, LATE + "        weights = weights * (1 / weights.sum(-1, keepdim=True))\n"),
        (").sum(2)", ").sum(1)"),  # over another axis, which is another bug
        ("weights * others", "weights * (self.gate(x) > 0).mT"),  # the tokens choose
        ("weights * others", "weights * (torch.arange(x.shape[1]) < 4)[:, None]"),  # whole rows
        (
            "weights = torch.softmax(scores, dim=-1)",
            "weights = torch.softmax(scores.masked_fill(others == 0, float('-inf')), dim=-1)",
        ),
    ],
)
def test_what_leaves_the_sums_right_is_not_blamed(tmp_path, old, new):
    assert old in PAIRS
    assert "mask-after-softmax" not in found_in(tmp_path, PAIRS.replace(old, new))
