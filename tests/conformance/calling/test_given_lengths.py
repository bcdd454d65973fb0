"""Lengths among the arguments of an example are found by what they hide, whatever their name is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from conformance.calling.attentions import Projected
from heedful.conformance import check


def example():
    return torch.randn(2, 5, 8), torch.tensor([5, 3])


class Layered(nn.Module):
    """Two layers, so that what becomes of padding in the first one matters."""

    def __init__(self, d_model: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Projected(d_model) for _ in range(2)])

    def bias(self, x, real):
        return torch.where(real[:, None] & real[:, :, None], 0.0, -torch.inf).to(x.dtype)

    def forward(self, x, num_atoms):
        real = torch.arange(x.shape[1]) < num_atoms[:, None]
        bias = self.bias(x, real)
        for layer in self.layers:
            q, k, v = layer.split(x)
            x = x + (q @ k.mT / q.shape[-1] ** 0.5 + bias).softmax(dim=-1) @ v
        return x


class KeysAlone(Layered):
    def bias(self, x, real):
        return torch.zeros_like(x[..., :1]).mT.masked_fill(~real[:, None], -torch.inf)


class Fused(Layered):
    """Hides keys from all queries, and queries of padding from all keys."""

    def forward(self, x, n_words):
        real = torch.arange(x.shape[1]) < n_words[:, None]
        pairs = torch.einsum("bi, bj -> bij", real.double(), real.double())
        for layer in self.layers:
            q, k, v = layer.split(x)
            scores = torch.einsum("bid, bjd -> bij", q, k) / q.shape[-1] ** 0.5
            x = x + scores.masked_fill(pairs == 0, -torch.inf).softmax(dim=-1) @ v
        return x


@pytest.mark.parametrize(("target", "word"), [(Layered, "where"), (Fused, "masked_fill")])
def test_padded_queries_that_see_no_key_spoil_the_next_layer(target, word):
    (bug,) = check(target, example=example).bugs
    assert bug.name == "nan-on-masked-rows"
    assert bug.place is not None
    assert word in bug.place.source


def test_lengths_that_hide_keys_alone_are_right():
    report = check(KeysAlone, example=example)
    assert not report.bugs
    assert "num_atoms" in str(report)


class Packed(Projected):
    """Returns the words of all utterances one after another, without padding."""

    power = 0.5

    def forward(self, x, seq_lens):
        q, k, v = self.split(x)
        hidden = torch.arange(x.shape[1]) >= torch.tensor(seq_lens)[:, None]
        scores = (q @ k.mT / q.shape[-1] ** self.power).masked_fill(hidden[:, None], -torch.inf)
        return torch.cat([row[:n] for row, n in zip(scores.softmax(-1) @ v, seq_lens, strict=True)])


class PackedTwiceScaled(Packed):
    power = 1.0


@pytest.mark.parametrize(("target", "bugs"), [(Packed, []), (PackedTwiceScaled, ["scale-wrong"])])
def test_a_list_of_lengths_and_rows_without_padding(target, bugs):
    report = check(target(8), example=(torch.randn(3, 6, 8), [6, 4, 3]))
    assert [bug.name for bug in report.bugs] == bugs
