"""Parameters that the output depends on are registered with the module."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from heedful.conformance import check


class Attention(nn.Module):
    """Attention of one head, whose variants keep their projections in various ways."""

    def __init__(self, d_model: int = 24) -> None:
        super().__init__()
        self.d_model = d_model
        self.build(d_model)

    def build(self, d_model: int) -> None:
        self.layers = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(3)])

    def projections(self):
        return self.layers

    def forward(self, x):
        query, key, value = (layer(x) for layer in self.projections())
        weights = F.softmax(query @ key.transpose(-2, -1) / self.d_model**0.5, dim=-1)
        return weights @ value


class Listed(Attention):
    def build(self, d_model):
        self.layers = [nn.Linear(d_model, d_model) for _ in range(3)]


class Named(Attention):
    def build(self, d_model):
        self.layers = {name: nn.Linear(d_model, d_model) for name in ("query", "key", "value")}

    def projections(self):
        return self.layers.values()


class Matrices(Attention):
    """Parameters, not layers, in a list."""

    def build(self, d_model):
        self.matrices = [nn.Parameter(torch.randn(d_model, d_model) / 5) for _ in range(3)]

    def projections(self):
        return [lambda x, it=it: x @ it.to(x) for it in self.matrices]


class MadeInEachCall(Attention):
    def forward(self, x):
        output = super().forward(x)
        mix = nn.Linear(self.d_model, self.d_model)
        return mix(output)


class ReplacedInEachCall(Attention):
    def forward(self, x):
        self.mix = nn.Linear(self.d_model, self.d_model)
        return self.mix(super().forward(x))


class MadeInFirstCall(Attention):
    """Makes a layer once, when it learns the width of the tokens."""

    def build(self, d_model):
        super().build(d_model)
        self.mix = None

    def forward(self, x):
        if self.mix is None:
            self.mix = nn.Linear(x.shape[-1], self.d_model)
        return self.mix(super().forward(x))


class Shared(Attention):
    """A plain list of layers that are registered as well."""

    def build(self, d_model):
        self.query, self.key, self.value = (nn.Linear(d_model, d_model) for _ in range(3))
        self.layers = [self.query, self.key, self.value]


class Collected(Attention):
    """Keeps as many layers as its caller wants, one by default, in a plain list."""

    def __init__(self, d_model: int, depth: int = 1) -> None:
        super().__init__(d_model)
        self.stack = [nn.Linear(d_model, d_model) for _ in range(depth)]

    def forward(self, x):
        return self.stack[0](super().forward(x))


class Borrowed(Attention):
    """Hides one layer in a list so that it is not registered, as one does with another module's layer."""

    def build(self, d_model):
        super().build(d_model)
        self.tied = [nn.Linear(d_model, d_model)]

    def forward(self, x):
        return self.tied[0](super().forward(x))


@pytest.mark.parametrize(
    ("definition", "line"),
    [
        (Listed, "self.layers = ["),
        (Named, "self.layers = {"),
        (Collected, "self.stack = ["),
        (Matrices, "self.matrices = ["),
        (MadeInEachCall, "mix = nn.Linear("),
        (ReplacedInEachCall, "self.mix = nn.Linear("),
    ],
    ids=lambda it: it.__name__ if isinstance(it, type) else "",
)
def test_parameters_that_no_optimizer_trains_are_reported(definition, line) -> None:
    report = check(definition)
    (bug,) = report.bugs
    assert bug.name == "parameter-not-registered"
    assert bug.place is not None
    assert bug.place.source.startswith(line)


@pytest.mark.parametrize("definition", [Attention, MadeInFirstCall, Shared, Borrowed])
def test_parameters_that_are_registered_or_borrowed_are_not_reported(definition) -> None:
    assert check(definition).bugs == ()


@pytest.mark.parametrize(
    ("definition", "fixed"),
    [
        (Listed, "nn.ModuleList([nn.Linear("),
        (Named, "nn.ModuleDict({name: nn.Linear("),
        (Matrices, "nn.ParameterList([nn.Parameter("),
    ],
)
def test_a_list_is_fixed_by_one_that_registers(definition, fixed) -> None:
    (fix,) = check(definition, fix=True).fixes
    assert fixed in fix.diff
