"""What the user states about a target is held against what the target does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from heedful import check
from heedful.errors import ArgumentError
from heedful.textbook import CausalAttention, MultiHeadAttention, MultiHeadAttentionWrapper

SINGLE = CausalAttention(3, 4, context_length=16)


def attend(query, key, value):
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(dim=-1) @ value


@pytest.mark.parametrize(
    ("target", "statements", "words"),
    [
        (SINGLE, {"num_heads": 7}, "num_heads=7, but each sequence has 1 head"),
        (MultiHeadAttention, {"num_heads": 3}, "num_heads=3, but each sequence has 4 heads"),
        (SINGLE, {"causal": False}, "no output depends on a later token"),
        (attend, {"window": 3}, "window=3, but a query sees 7 keys"),
    ],
)
def test_a_contradiction_is_a_bug(target, statements, words):
    report = check(target, **statements)
    assert [it.name for it in report.bugs] == ["statement-contradicted"]
    assert words in report.bugs[0].proof


@pytest.mark.parametrize(
    ("target", "statements"),
    [
        (SINGLE, {"num_heads": 1, "causal": True}),
        (MultiHeadAttention, {"num_heads": 4}),
        (MultiHeadAttentionWrapper(4, 4, context_length=16, num_heads=2), {"num_heads": 2}),
        (attend, {"causal": False}),
    ],
)
def test_a_true_statement_is_none(target, statements):
    assert "statement-contradicted" not in [it.name for it in check(target, **statements).findings]


@pytest.mark.parametrize("statement", [{"window": 0}, {"num_heads": 0}, {"num_heads": -1}])
def test_a_number_below_one_is_refused(statement):
    with pytest.raises(ArgumentError, match="at least 1"):
        check(attend, **statement)


def test_a_module_without_forward_is_told_so():
    class Forgotten(torch.nn.Module):
        pass

    with pytest.raises(ArgumentError, match=r"a method forward.*Forgotten, which defines none"):
        check(Forgotten)


class BidirectionalAttention(nn.Module):
    def __init__(self, dim: int, is_causal: bool = True):
        super().__init__()
        self.qkv, self.masked = nn.Linear(dim, 3 * dim), is_causal

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(query, key, value, is_causal=self.masked)


def test_a_name_is_a_statement():
    (bug,) = check(BidirectionalAttention(16)).bugs
    assert (bug.name, "name says" in bug.proof) == ("statement-contradicted", True)
    assert "scaled_dot_product_attention" in bug.place.source
    assert not check(BidirectionalAttention(16, is_causal=False)).bugs
