"""Code that tells padding from real tokens itself hides it in its attentions."""

from __future__ import annotations

import pytest
import torch
from attentions_with_caches import written
from torch import nn

from heedful import check

WORDS = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, words=20, width=24, most=30):
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=0)
        self.places = nn.Embedding(most, width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, words):
        x = self.embed(words)
        x = x + self.places(torch.arange(words.shape[1]))
        real = words != 0
        scores = self.q(x) @ self.k(x).mT / x.shape[-1] ** 0.5
        scores = scores.masked_fill(~real[:, None], torch.finfo(scores.dtype).min)
        return x + scores.softmax(-1) @ self.v(x)
"""

# The newest item is the last one, and the padding comes first.
ITEMS = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, items=20, width=24, most=30):
        super().__init__()
        self.embed = nn.Embedding(items, width, padding_idx=0)
        self.places = nn.Embedding(most, width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, items):
        padding = items == 0
        x = self.embed(items) + self.places((~padding).cumsum(1))
        x = x * ~padding[..., None]
        hidden = torch.ones(items.shape[1], items.shape[1], dtype=torch.bool).triu(1)
        hidden = hidden | padding[:, None] & ~torch.eye(items.shape[1], dtype=torch.bool)
        context = nn.functional.scaled_dot_product_attention(
            self.q(x), self.k(x), self.v(x), attn_mask=~hidden
        )
        return (x + context) * ~padding[..., None]
"""
HIDING = (
    "        hidden = hidden | padding[:, None] & ~torch.eye(items.shape[1], dtype=torch.bool)\n"
)


def found(tmp_path, source, **options):
    with written(tmp_path, source) as target:
        report = check(target, **options)
    return [(bug.name, bug.place.source if bug.place else "") for bug in report.bugs]


@pytest.mark.parametrize("vectors", ["x.abs().sum(-1) != 0", "(x != 0).any(-1)"])
def test_a_mask_of_vectors_that_have_positions_tells_no_padding(tmp_path, vectors):
    assert found(tmp_path, WORDS) == []
    line = f"real = {vectors}"
    assert found(tmp_path, WORDS.replace("real = words != 0", line)) == [("padding-leak", line)]
    early = WORDS.replace("        real = words != 0\n", "")
    early = early.replace(
        "        x = x + self.places", f"        {line}\n        x = x + self.places"
    )
    assert found(tmp_path, early) == []


def test_padding_that_code_tells_by_ids_is_hidden_from_later_tokens(tmp_path):
    assert found(tmp_path, ITEMS, causal=True) == []
    ((name, line),) = found(tmp_path, ITEMS.replace(HIDING, ""), causal=True)
    assert name == "padding-leak"
    assert line.startswith(("hidden =", "self.q(x)", "context ="))


def test_positions_counted_from_the_padding_on_are_no_leak_of_attention(tmp_path):
    """Callers of such code may give every sequence the same number of tokens."""
    counted = ITEMS.replace("(~padding).cumsum(1)", "torch.arange(items.shape[1])")
    assert found(tmp_path, counted, causal=True) == []
    assert found(tmp_path, counted.replace(HIDING, ""), causal=True) == []


class Bonded(nn.Module):
    """Attends along the bonds of atoms, of which padding has none, and leaves padding out of the sum."""

    def __init__(self, kinds=20, width=24):
        super().__init__()
        self.embed = nn.Embedding(kinds, width, padding_idx=0)
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, atoms, bonds):
        q, k, v = self.qkv(self.embed(atoms)).chunk(3, dim=-1)
        scores = (q @ k.mT / k.shape[-1] ** 0.5).masked_fill(bonds == 0, -1e9)
        return ((scores.softmax(-1) * (bonds != 0)) @ v * (atoms != 0)[..., None]).sum(1)


def test_padding_without_bonds_is_hidden_by_them():
    atoms = torch.randint(1, 20, (2, 6)) * (torch.arange(6) < torch.tensor([6, 4])[:, None])
    bonds = torch.zeros(2, 6, 6)
    for molecule, count in zip(bonds, (6, 4), strict=True):
        first = torch.arange(count - 1)
        molecule[first, first + 1] = molecule[first + 1, first] = 1.0
    assert check(Bonded, example=(atoms, bonds)).bugs == ()


TWO_RATES = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x, hidden=None):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if hidden is not None:
            scores = scores.masked_fill(hidden[:, None], -torch.inf)
        return x + scores.softmax(-1) @ v

class Attention(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.fast, self.slow = Layer(width), Layer(width)

    def forward(self, x, x_lens):
        hidden = torch.arange(x.shape[1]) >= x_lens[:, None]
        x = self.fast(x, hidden)
        slow = self.slow(x[:, ::2], hidden[:, ::2])
        return x + slow.repeat_interleave(2, dim=1)[:, : x.shape[1]]
"""


def test_an_attention_at_another_rate_that_forgets_lengths_leaks(tmp_path):
    assert found(tmp_path, TWO_RATES) == []
    ((name, _),) = found(tmp_path, TWO_RATES.replace(", hidden[:, ::2])", ")"))
    assert name == "padding-leak"


HANDED_ON = (
    TWO_RATES[: TWO_RATES.index("class Attention")]
    + """
class Slow(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = Layer(width)

    def forward(self, x, bias=None, padding_mask=None):
        y = self.part(x[:, ::2], bias=bias, padding_mask=padding_mask)
        return x + y.repeat_interleave(2, dim=1)[:, : x.shape[1]]

    def part(self, x, bias=None, padding_mask=None):
        return self.layer(x if bias is None else x + bias, padding_mask)

class Attention(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.fast, self.slow = Layer(width), Slow(width)

    def forward(self, x, x_lens):
        hidden = torch.arange(x.shape[1]) >= x_lens[:, None]
        return self.slow(self.fast(x, hidden), padding_mask=hidden[:, ::2])
"""
)


def test_the_line_of_a_leak_hands_on_another_mask_than_its_own(tmp_path):
    assert found(tmp_path, HANDED_ON) == []
    wrong = HANDED_ON.replace("padding_mask=padding_mask)", "padding_mask=bias)", 1)
    ((name, line),) = found(tmp_path, wrong)
    assert name == "padding-leak"
    assert "padding_mask=bias" in line
