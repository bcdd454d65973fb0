"""Rows of a table of positions belong to the tokens, not to the sequences, and not all tokens get the same one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from heedful.conformance import check


class Encoder(nn.Module):
    """An encoder of torch's layers that adds rows of a table to its tokens."""

    def __init__(self, d_model: int = 24, batch_first: bool = True) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(64, d_model))
        self.kinds = nn.Embedding(2, d_model)
        self.layer = nn.TransformerEncoderLayer(d_model, 2, 48, batch_first=batch_first)

    def forward(self, x):
        return self.layer(x + self.rows(x))

    def rows(self, x):
        return self.table[: x.shape[1]]


class Kinds(Encoder):
    """Adds the same row to all tokens on purpose: that of their kind."""

    def rows(self, x):
        return self.table[: x.shape[1]] + self.kinds(torch.zeros(x.shape[:2], dtype=torch.int64))


class TokensFirst(Encoder):
    """Takes tokens (T, B, C)."""

    def __init__(self, d_model: int = 24) -> None:
        super().__init__(d_model, batch_first=False)

    def forward(self, x):
        """Return the encoded tokens.

        Args:
            x: (time, batch, channels).
        """
        return super().forward(x)

    def rows(self, x):
        return self.table[: x.shape[0]].unsqueeze(1)


class OfSequences(Encoder):
    def rows(self, x):
        return self.table[: x.shape[0]].unsqueeze(1)


class OfCountedSequences(Encoder):
    def rows(self, x):
        counted = torch.arange(x.shape[0])
        return nn.functional.embedding(counted, self.table)[:, None]


class OfSequencesSecond(TokensFirst):
    def rows(self, x):
        return self.table[None, : x.shape[1]]


class OfTheLength(Encoder):
    def rows(self, x):
        return self.table[x.shape[1]]


@pytest.mark.parametrize("encoder", [Encoder, Kinds, TokensFirst])
def test_rows_of_the_tokens_are_right(encoder):
    report = check(encoder)
    assert report.bugs == (), report


@pytest.mark.parametrize(
    ("encoder", "line"),
    [
        (OfSequences, "return self.table[: x.shape[0]].unsqueeze(1)"),
        (OfCountedSequences, "counted = torch.arange(x.shape[0])"),
        (OfSequencesSecond, "return self.table[None, : x.shape[1]]"),
        (OfTheLength, "return self.table[x.shape[1]]"),
    ],
)
def test_rows_of_the_sequences_or_of_the_length_are_named(encoder, line):
    (bug,) = check(encoder).bugs
    assert bug.name == "positions-wrong"
    assert bug.place is not None
    assert bug.place.source == line
