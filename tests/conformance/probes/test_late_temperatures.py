"""A temperature belongs before the softmax; another trained factor of the weights may be meant."""

from __future__ import annotations

import pytest
from attentions_with_caches import written

from heedful import check

COSINE = """import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, use_cosine=False):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.use_cosine = use_cosine
        self.tau, self.gain = nn.Parameter(torch.tensor(0.05)), nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.use_cosine:
            scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT / self.tau
            weights = scores.softmax(-1) * self.gain
        else:
            weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        return weights @ v
"""


@pytest.mark.parametrize(
    ("after", "names"), [("* self.gain", []), ("/ self.tau", ["rows-not-normalised"])]
)
def test_weights_that_a_temperature_divides_are_named_and_those_with_a_gain_are_not(
    tmp_path, after, names
):
    with written(tmp_path, COSINE.replace("* self.gain", after)) as attention:
        report = check(attention)
    assert [it.name for it in report.bugs] == names, report
