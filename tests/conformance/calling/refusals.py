"""Modules that refuse the first calls and values, and whose exceptions or code tell what they take instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from conformance.calling.attentions import Projected, attend

if TYPE_CHECKING:
    from collections.abc import Callable


class OnOneAxis(Projected):
    """Attends along the rows or the columns of a map, never along both, though both are on by default."""

    def __init__(
        self, d_model: int, along_rows: bool = True, along_columns: bool = True, over: int = -1
    ) -> None:
        super().__init__(d_model)
        self.along_rows, self.along_columns, self.over = along_rows, along_columns, over

    def forward(self, maps: Tensor) -> Tensor:
        b, h, w, c = maps.shape  # noqa: RUF059 - as public code unpacks it
        if self.along_rows and self.along_columns:
            raise ValueError("choose one axis")
        lines = maps if self.along_rows else maps.transpose(1, 2)
        q, k, v = self.split(lines.flatten(0, 1))
        weights = (q @ k.mT / c**0.5).softmax(self.over)
        out = (weights @ v).unflatten(0, lines.shape[:2])
        return out if self.along_rows else out.transpose(1, 2)


class OfFrames(nn.Module):
    """Each pixel of a film attends to itself at other times: frames, channels, height and width, without weights."""

    def __init__(self, over: int = -1) -> None:
        super().__init__()
        self.over = over

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert q.dim() == 5, "films only"
        b, t, c, h, w = q.shape  # noqa: RUF059 - as public code unpacks it
        q, k, v = (it.permute(0, 3, 4, 1, 2) for it in (q, k, v))
        weights = (q @ k.mT * c**-0.5).softmax(self.over)
        return (weights @ v).permute(0, 3, 4, 1, 2)


class Linked(Projected):
    """The nodes of one graph attend to each other, as strongly as they are linked; the links come first."""

    def forward(self, A: Tensor, h: Tensor) -> Tensor:
        count = len(h)
        q, k, v = self.project(h).reshape(count, 3, 4, -1).permute(1, 2, 0, 3)
        return ((A * (q @ k.mT) * self.scale).softmax(-1) @ v).transpose(0, 1).reshape(count, -1)

    def __init__(self, d_model: int, factor: float = 1.0) -> None:
        super().__init__(d_model)
        self.project, self.scale = self.qkv, factor * (d_model // 4) ** -0.5


class Scores(nn.Module):
    """Compares a state with the tokens of an encoder, which come first, in one of two ways."""

    def __init__(self, way: str, size: int) -> None:
        super().__init__()
        if way not in ("product", "bilinear"):
            raise KeyError(way)
        self.way, self.turn = way, nn.Linear(size, size, bias=False)

    def forward(self, state: Tensor, tokens: Tensor) -> Tensor:
        tokens = self.turn(tokens) if self.way == "bilinear" else tokens
        return (state * tokens).sum(dim=2).t().softmax(dim=1)


class StepOfParts(nn.Module):
    """A step of a decoder that hands a text on to its scores, and takes its embeddings ready-made."""

    def __init__(
        self, score_model: str, embedding: nn.Module, hidden_size: int, output_size: int
    ) -> None:
        super().__init__()
        self.scores = Scores(score_model, hidden_size)
        self.embedding = embedding
        self.gru = nn.GRU(hidden_size, hidden_size)
        self.out = nn.Linear(2 * hidden_size, output_size)

    def forward(self, word: Tensor, hidden: Tensor, encoder_outputs: Tensor) -> tuple[Tensor, ...]:
        out, hidden = self.gru(self.embedding(word), hidden)
        weights = self.scores(out, encoder_outputs)
        context = torch.einsum("bt,tbc->bc", weights, encoder_outputs)
        return self.out(torch.cat([out[0], context], dim=1)), hidden


class OfFixedWidth(nn.Module):
    """Its encoder has a width that no argument changes; what it takes must be as wide."""

    def __init__(self, amount: int, hides: Callable[..., Tensor] = torch.triu) -> None:
        super().__init__()
        self.mix, self.hides = nn.Linear(amount, amount), hides
        self.layer = nn.TransformerEncoderLayer(40, 2, 80, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        later = self.hides(torch.ones(x.size(1), x.size(1)), 1) == 1
        return self.layer(self.mix(x), src_mask=later)


class OfFullSessions(nn.Module):
    """Takes sessions as long as its table of positions, beside items that were and were not chosen."""

    def __init__(
        self, n_items: int, session: int = 9, d_model: int = 24, flip: bool = False
    ) -> None:
        super().__init__()
        self.items, self.flip = nn.Embedding(n_items, d_model), flip
        self.places = nn.Parameter(torch.randn(session, d_model))
        self.attention = Projected(d_model)

    def forward(self, session: Tensor, chosen: Tensor, others: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = self.attention.split(self.items(session) + self.places)
        later = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu(1)
        rows = attend(q, k, v, later.mT if self.flip else later)
        return rows, *(None if it is None else self.items(it) for it in (chosen, others))


class OfItemsFirst(nn.Module):
    """Pools sessions of items, (T, B), with lengths, after a recurrent layer that takes tokens first."""

    def __init__(self, n_items: int, hidden_size: int, over: int = 0) -> None:
        super().__init__()
        self.emb = nn.Embedding(n_items, hidden_size, padding_idx=0)
        self.gru, self.over = nn.GRU(hidden_size, hidden_size), over
        self.score, self.out = nn.Linear(hidden_size, 1), nn.Linear(hidden_size, n_items)

    def forward(self, seq: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.emb(seq), lengths, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.gru(packed)[0], total_length=len(seq))
        padding = torch.arange(len(seq))[:, None] >= lengths
        scores = self.score(states).squeeze(-1).masked_fill(padding, -1e9)
        return self.out((scores.softmax(self.over)[..., None] * states).sum(0))


class OfBags(nn.Module):
    """Pools a bag of gray images, which is a batch of its own, by their scores."""

    def __init__(self, over: int = 0) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 6, 5, stride=4), nn.ReLU(), nn.Flatten())
        self.score, self.over = nn.Linear(6 * 6 * 6, 1), over
        self.out = nn.Linear(6 * 6 * 6, 2)

    def forward(self, bag: Tensor) -> Tensor:
        rows = self.features(bag.squeeze(0))
        return self.out(self.score(rows).softmax(self.over).mT @ rows)
