"""Exceptions in ordinary calls."""

import pytest
import torch
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
