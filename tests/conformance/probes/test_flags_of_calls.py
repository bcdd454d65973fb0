"""Flags of a call that are off by default, and masks that a docstring describes and that hide nothing."""

from __future__ import annotations

from torch import nn

from heedful.conformance import check


class Tied(nn.Module):
    """Takes the mean of the scores over a second axis of rows, or over the keys, if a call asks for it."""

    def __init__(self, dim: int = 16, over: int = 1) -> None:
        super().__init__()
        self.qkv, self.over = nn.Linear(dim, 3 * dim), over

    def forward(self, x, tied: bool = False):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.mT / q.shape[-1] ** 0.5)[:, None]
        if tied:
            scores = scores.mean(dim=self.over, keepdim=True).expand_as(scores)
        return (scores[:, 0].softmax(-1)) @ v


class OfKeys(Tied):
    def __init__(self, dim: int = 16) -> None:
        super().__init__(dim, over=-1)


def test_what_a_flag_of_the_call_does_is_checked():
    report = check(Tied)
    assert not report.findings
    assert report.coverage is not None
    assert report.coverage.complete
    (bug,) = check(OfKeys).bugs
    assert bug.name == "attention-ignored"
    assert "tied=True" in bug.case


class WithMaskOfQueries(nn.Module):
    def __init__(self, dim: int = 16, added: bool = False) -> None:
        super().__init__()
        self.qkv, self.added = nn.Linear(dim, 3 * dim), added

    def forward(self, x, query_mask=None):
        """Attend.

        Args:
            query_mask: (batch, query, key), 1 for queries that are kept, and 0 for those that are ignored.
        """
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        if query_mask is not None:
            weights = query_mask + weights if self.added else query_mask * weights
        return weights @ v


class WithAddedMask(WithMaskOfQueries):
    def __init__(self, dim: int = 16) -> None:
        super().__init__(dim, added=True)


def test_a_mask_that_hides_nothing_changes_nothing():
    assert "mask-inverted" not in [it.name for it in check(WithMaskOfQueries).findings]
    (bug,) = (it for it in check(WithAddedMask).bugs if it.name == "mask-inverted")
    assert "With query_mask of ones" in bug.proof
    assert bug.place is not None
    assert bug.place.source.startswith("weights = query_mask + weights")


class OverQueries(nn.Module):
    """Lets the queries compete for the keys, if a call asks for it, as slots do (Locatello et al. 2020)."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x, mask=None, inverted_attention: bool = False):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], -1e30)
        if not inverted_attention:
            return scores.softmax(-1) @ v
        weights = scores.softmax(-2)
        if mask is not None:
            weights = weights.masked_fill(~mask[:, None], 0.0)
        return weights / (weights.sum(-1, keepdim=True) + 1e-9) @ v


def test_what_a_flag_of_the_call_may_mean_is_no_bug():
    assert not check(OverQueries).bugs
