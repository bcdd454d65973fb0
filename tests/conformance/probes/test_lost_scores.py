"""Scores that lose a mask, the scale, a soft cap or the query on their way to the weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from heedful import check

pytestmark = pytest.mark.slow


class Documents(nn.Module):
    """Tokens attend to those of their own document."""

    def __init__(self, dim: int = 24) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def masked(self, scores, seen):
        return scores.masked_fill(~seen, -torch.inf)

    def forward(self, x, document_ids):
        q, k, v = self.qkv(x).chunk(3, -1)
        seen = document_ids[:, :, None] == document_ids[:, None]
        scores = self.masked(q @ k.mT / q.shape[-1] ** 0.5, seen)
        return scores.softmax(-1) @ v


class AddedTruths(Documents):
    """Adds the mask itself."""

    def masked(self, scores, seen):
        return scores + seen


class Biased(nn.Module):
    """Takes a mask of numbers that is added."""

    def __init__(self, dim: int = 24) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x, attention_mask):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / q.shape[-1] ** 0.5 + attention_mask
        return scores.softmax(-1) @ v


class Scaled(nn.Module):
    """Scales the scores by a number that is 0 by default, which stands for 1/√D."""

    def __init__(self, dim: int = 24) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def factor(self, size, scale=0.0):
        return scale or size**-0.5

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT * self.factor(q.shape[-1])
        return scores.softmax(-1) @ v


class Erased(Scaled):
    """Takes the 0 for what it is."""

    def factor(self, size, scale=0.0):
        return scale


class OfMore(Scaled):
    """Adds a number to the denominator of the softmax, which is 0 by default."""

    def forward(self, x, more=0.0):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT * self.factor(q.shape[-1])
        largest = scores.amax(-1, keepdim=True).clamp(min=0.0)
        powers = torch.exp(scores - largest)
        return powers / (more * torch.exp(-largest) + powers.sum(-1, keepdim=True)) @ v


class Capped(nn.Module):
    """Caps its scores softly."""

    def __init__(self, dim: int = 24, softcap: float = 30.0) -> None:
        super().__init__()
        self.qkv, self.softcap = nn.Linear(dim, 3 * dim), softcap

    def capped(self, scores):
        return self.softcap * torch.tanh(scores / self.softcap)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = self.capped(q @ k.mT / q.shape[-1] ** 0.5)
        return scores.softmax(-1) @ v


class Switched(Capped):
    """Is told whether to cap by a flag of that name, and caps at a fixed number."""

    def __init__(self, dim: int = 24) -> None:
        super().__init__(dim, softcap=True)

    def capped(self, scores):
        return scores.clamp(-50, 50) if self.softcap else scores


class CappedInHalf(Capped):
    """Caps scores in half precision alone."""

    def capped(self, scores):
        if scores.dtype == torch.float16:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        return scores


class Additive(nn.Module):
    """Scores of a decoder's state and the outputs of an encoder (Bahdanau et al. 2015)."""

    def __init__(self, hidden_size: int = 24) -> None:
        super().__init__()
        self.attn, self.v = nn.Linear(2 * hidden_size, hidden_size), nn.Linear(hidden_size, 1)

    def energy(self, joined):
        return torch.tanh(self.attn(joined))

    def forward(self, hidden, encoder_outputs):
        """Return the context.

        Args:
            hidden: (batch, hidden_size)
            encoder_outputs: (batch, length, hidden_size)
        """
        states = hidden.unsqueeze(1).expand(-1, encoder_outputs.shape[1], -1)
        energy = self.energy(torch.cat([states, encoder_outputs], dim=-1))
        weights = self.v(energy).squeeze(-1).softmax(-1)
        return torch.bmm(weights.unsqueeze(1), encoder_outputs).squeeze(1)


class Linear(Additive):
    """Leaves out the tanh, so that the state adds one number to all scores."""

    def energy(self, joined):
        return self.attn(joined)


class Stable(Scaled):
    """Subtracts the largest score of each query, which changes no weight."""

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT * self.factor(q.shape[-1])
        scores = scores + -scores.amax(-1, keepdim=True)
        return scores.softmax(-1) @ v


@pytest.mark.parametrize(
    "target", [Documents, Biased, Scaled, OfMore, Capped, Switched, Additive, Stable]
)
def test_right_scores_are_left_alone(target):
    assert [bug.name for bug in check(target).bugs] == []


@pytest.mark.parametrize(
    ("target", "name", "line"),
    [
        (AddedTruths, "mask-fill-too-small", "return scores + seen"),
        (Erased, "scale-wrong", "scores = q @ k.mT * self.factor"),
        (CappedInHalf, "weights-wrong", "if scores.dtype == torch.float16"),
        (Linear, "weights-wrong", "energy = self.energy(torch.cat("),
    ],
)
def test_what_scores_lose_is_named_on_its_line(target, name, line):
    (bug,) = check(target).bugs
    assert bug.name == name
    assert bug.place is not None
    assert bug.place.source.startswith(line)


class MultiHead(nn.Module):
    """Projects tokens, and splits them into heads."""

    def __init__(self, embed_dim: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.out = heads, nn.Linear(embed_dim, embed_dim)
        size = embed_dim if type(self) is MultiHead else embed_dim // heads
        self.q, self.k, self.v = (nn.Linear(size, size, bias=False) for _ in range(3))

    def of_heads(self, layer, x):
        return layer(x).unflatten(-1, (self.heads, -1))

    def forward(self, x):
        q, k, v = (self.of_heads(layer, x).transpose(1, 2) for layer in (self.q, self.k, self.v))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class SplitFirst(MultiHead):
    """Splits them first, so that one matrix serves all heads."""

    def of_heads(self, layer, x):
        return layer(x.unflatten(-1, (self.heads, -1)))


@pytest.mark.parametrize(
    ("target", "names"), [(MultiHead, []), (SplitFirst, ["heads-mixed-split"])]
)
def test_heads_that_share_their_projections_are_suspicious(target, names):
    findings = check(target).findings
    assert [(it.name, it.level) for it in findings] == [(name, "suspicious") for name in names]
    assert all("q.weight, k.weight, v.weight" in it.proof for it in findings)
