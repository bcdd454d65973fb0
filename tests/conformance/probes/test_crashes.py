"""Exceptions in ordinary calls."""

import pytest
import torch
from attentions_with_caches import written
from edited_attention import DROPOUT, assert_bug
from torch import nn

from heedful import check


def test_an_exception_in_training_is_found(tmp_path):
    halved = "        if self.training:\n            weights = weights.half_of\n"
    assert_bug(tmp_path, "crashes", DROPOUT, DROPOUT + halved, "half_of")


class Short(nn.Module):
    """Returns a row for each token, or one fewer if its test holds."""

    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        weights = (query @ key.mT / key.shape[-1] ** 0.5).softmax(dim=-1)
        return (weights @ value)[:, 1 if self.is_short(x) else 0 :]

    def is_short(self, x):
        raise NotImplementedError


class ShortInTraining(Short):
    def is_short(self, x):
        return self.training or x.dtype == torch.float32


class ShortForOthers(Short):
    """The test holds for tokens unlike the first ones that any copy has seen."""

    first: list[float] = []  # noqa: RUF012 - all copies share it

    def is_short(self, x):
        self.first.extend([] if self.first else x.flatten().tolist())
        return x.flatten()[0].item() not in self.first


@pytest.mark.parametrize("target", [ShortInTraining, ShortForOthers])
def test_a_result_that_is_not_understood_is_no_exception_of_the_target(target):
    report = check(target(24))
    assert {"crashes", "stale-state"}.isdisjoint(
        it.name for it in report.findings if it.level != "not-testable"
    )
    assert "TargetError" not in str(report)
    assert "could not run: the result has no row for each of" in " ".join(str(report).split())


GLOBAL_INPUT = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(dim, dim))

    def forward(self, inputs):
        query = torch.matmul(input, self.weight)
        weights = (query @ query.mT / query.shape[-1] ** 0.5).softmax(-1)
        return weights @ query
"""


def test_a_function_of_python_in_place_of_a_tensor_is_found(tmp_path):
    with written(tmp_path, GLOBAL_INPUT) as target:
        (bug,) = check(target).bugs
    assert (bug.name, bug.place.source) == (
        "crashes",
        "query = torch.matmul(input, self.weight)",
    )


def test_a_function_of_python_that_is_an_argument_of_ours_is_no_bug(tmp_path):
    source = GLOBAL_INPUT.replace("inputs", "input")
    with written(tmp_path, source) as target:
        assert not check(target).bugs
