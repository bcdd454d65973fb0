"""Variables that are made alike: one that is forgotten, and the line that reads its siblings in its place."""

from __future__ import annotations

import pytest
from attentions_with_caches import written

from heedful import check

pytestmark = pytest.mark.slow

GATED = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.narrow = nn.Linear(width, width // 2)
        self.smallest = nn.Linear(width, width)
        self.largest = nn.Linear(width, width)

    def squeezed(self, tokens):
        return self.narrow(tokens).repeat(1, 1, 2)

    def forward(self, tokens):
        low = self.squeezed(tokens)
        high = self.squeezed(tokens.flip(-1))
        low = self.smallest(low) + self.largest(low)
        high = self.smallest(high) + self.largest(high)
        evidence = low * high
        gate = torch.sigmoid(evidence)
        return tokens * gate
"""
MEETING = "low * high"


@pytest.mark.parametrize("meeting", ["low * low", "torch.add(low, low)", "high + high"])
def test_a_variable_that_meets_itself_beside_a_forgotten_one_is_found(tmp_path, meeting):
    with written(tmp_path, GATED.replace(MEETING, meeting)) as attention:
        (finding,) = check(attention(24)).bugs
    assert finding.name == "weights-wrong"
    assert finding.place is not None
    assert meeting in finding.place.source


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (MEETING, MEETING),
        (MEETING, "low * low * (high if self.training else 1)"),
        (MEETING, "low.square()"),
        ("high = self.smallest(high) + self.largest(high)", "spread = high.std(-1)"),
    ],
)
def test_squares_and_variables_for_other_cases_raise_no_alarm(tmp_path, old, new):
    source = GATED.replace(old, new)
    if "spread" in new:
        source = source.replace(MEETING, "low * low")
    with written(tmp_path, source) as attention:
        assert not check(attention(24)).bugs


POOLED = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.asks = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, tokens):
        asked = self.asks(tokens)
        key = self.key(tokens)
        held = self.value(tokens)
        agreement = (asked * key).sum(-1, keepdim=True)
        weights = agreement.div(tokens.shape[-1] ** 0.5).softmax(dim=1)
        return weights * held
"""


def test_the_product_of_the_siblings_of_an_unused_projection_is_named(tmp_path):
    with written(tmp_path, POOLED) as attention:
        assert not check(attention(24)).bugs
    with written(tmp_path, POOLED.replace("asked * key", "asked * held")) as attention:
        (finding,) = check(attention(24)).bugs
    assert finding.name == "projection-unused"
    assert finding.place is not None
    assert "asked * held" in finding.place.source
