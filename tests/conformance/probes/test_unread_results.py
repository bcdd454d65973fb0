"""Some code reads what a layer computes, also where no call runs."""

from __future__ import annotations

import pytest
from attentions_with_caches import written

from heedful import check
from heedful.errors import ArgumentError

pytestmark = pytest.mark.slow

# The features are attended to only where a size says that there are some.
TWO_CONTEXTS = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width=16, features_width=0):
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.has_features = features_width > 0
        if self.has_features:
            self.feature_key = nn.Linear(features_width, width)
            self.join = nn.Linear(2 * width, width)

    def forward(self, x, features=None):
        weights = (self.query(x) @ self.key(x).mT * x.shape[-1] ** -0.5).softmax(-1)
        context = weights @ x
        if self.has_features:
            keys = self.feature_key(features)
            more = (self.query(x) @ keys.mT * x.shape[-1] ** -0.5).softmax(-1) @ keys
            seen = self.join(torch.cat([context, more], -1))
            context = torch.cat([context, seen], -1)
        return context
"""
# No call is known: the plan says which layers come when.
UNCALLABLE = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layers = nn.ModuleDict({"first": nn.Linear(dim, dim)})
        self.query, self.packed = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)

    def forward(self, x, plan):
        for step in plan["order"].split(","):
            x = self.layers[step](x)
        key, value = self.packed(x).chunk(2, -1)
        return (self.query(x) @ key.mT).softmax(-1) @ value
"""


def findings(tmp_path, source):
    with written(tmp_path, source) as target:
        return [(it.name, it.place.source) for it in check(target).bugs]


def test_a_result_that_another_one_stands_for_is_named_on_the_line_that_joins_that_twice(tmp_path):
    source = TWO_CONTEXTS.replace("[context, seen]", "[context, context]")
    (found,) = findings(tmp_path, source)
    assert found == ("projection-unused", "context = torch.cat([context, context], -1)")


def test_a_result_that_goes_to_nothing_is_named_where_it_is_computed(tmp_path):
    source = TWO_CONTEXTS.replace("@ keys\n", "@ features\n").replace("@ keys.mT", "@ features.mT")
    (found,) = findings(tmp_path, source)
    assert found == ("projection-unused", "keys = self.feature_key(features)")


def test_results_that_are_read_are_right(tmp_path):
    assert findings(tmp_path, TWO_CONTEXTS) == []


def test_a_part_that_nothing_reads_is_named_where_no_call_is_known(tmp_path):
    (found,) = findings(tmp_path, UNCALLABLE.replace("@ value", "@ x"))
    assert found == ("projection-unused", "key, value = self.packed(x).chunk(2, -1)")


@pytest.mark.parametrize("name", ["_", "_value"])
def test_a_part_that_is_named_as_unused_is_left_alone(tmp_path, name):
    source = UNCALLABLE.replace("@ value", "@ x").replace("key, value", f"key, {name}")
    with pytest.raises(ArgumentError, match="expected a call that works"):
        findings(tmp_path, source)
