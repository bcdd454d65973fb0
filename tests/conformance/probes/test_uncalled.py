"""A class of which no call is known is still checked by its construction, and never said to be right."""

import pytest
from attentions_with_caches import written

from heedful import check
from heedful.errors import ArgumentError

pytestmark = pytest.mark.slow

UNCALLABLE = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layers = LAYERS
        self.scale = nn.Parameter(SCALE)
        self.apply(self.initialise)

    def initialise(self, module):
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, x, plan):
        for step in plan["order"].split(","):
            x = self.layers[int(step)](x) * self.scale
        return FOUND
"""


def source(
    layers="nn.ModuleList([nn.Linear(dim, dim) for _ in range(3)])",
    scale="torch.ones(dim)",
    found="x",
):
    return UNCALLABLE.replace("LAYERS", layers).replace("SCALE", scale).replace("FOUND", found)


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        (
            source("[nn.Linear(dim, dim) for _ in range(3)]"),
            "parameter-not-registered",
            "self.layers = [",
        ),
        (source(scale="torch.empty(dim)"), "output-not-finite", "self.scale ="),
        (source(found="x + np.pi"), "undefined-or-global-name", "return x + np.pi"),
    ],
)
def test_the_construction_shows_a_bug(tmp_path, text, name, line):
    with written(tmp_path, text) as attention:
        report = check(attention)
    [bug] = report.bugs
    assert (bug.name, bug.place.source.startswith(line)) == (name, True)
    [fact] = report.facts
    assert fact.name == "call"
    assert fact.value.startswith("none works, and only the construction was checked")
    assert "--example" in fact.value
    assert report.exit_code == 1
    assert "1 bug" in str(report)


@pytest.mark.parametrize("text", [source(), source(found="cast(x)")])
def test_nothing_is_reported_if_the_construction_shows_no_bug(tmp_path, text):
    with (
        written(tmp_path, text) as attention,
        pytest.raises(ArgumentError, match="a call that works"),
    ):
        check(attention)
