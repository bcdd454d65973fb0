"""A mask in an example, of words beside other inputs or of numbers that are added, has to have an effect."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from heedful import check


class Caption(nn.Module):
    """Reads words after the frames of a video, some of which are padding."""

    def __init__(self):
        super().__init__()
        self.frame, self.word = nn.Linear(12, 24), nn.Embedding(30, 24)
        self.qkv = nn.Linear(24, 72)

    def seen(self, frame_mask, words):
        return torch.cat((frame_mask, torch.ones_like(words, dtype=torch.bool)), dim=1)

    def forward(self, video, words, frame_mask):
        """Return a row for each word.

        Args:
            video: (batch, frames, 3, height, width).
            words: (batch, length).
            frame_mask: (batch, frames), True for real frames.
        """
        rows = torch.cat((self.frame(video.flatten(2)), self.word(words)), dim=1)
        q, k, v = self.qkv(rows).chunk(3, dim=-1)
        mask = self.seen(frame_mask, words)[:, None]
        context = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return context[:, -words.shape[1] :]


class Blind(Caption):
    """Shows padded frames, too."""

    def forward(self, video, words, frame_mask):
        """Return a row for each word.

        Args:
            video: (batch, frames, 3, height, width).
            words: (batch, length).
            frame_mask: (batch, frames), True for real frames.
        """
        rows = torch.cat((self.frame(video.flatten(2)), self.word(words)), dim=1)
        q, k, v = self.qkv(rows).chunk(3, dim=-1)
        context = nn.functional.scaled_dot_product_attention(q, k, v)
        return context[:, -words.shape[1] :]


def test_a_documented_mask_that_nothing_reads_has_no_effect():
    real = torch.arange(3) < torch.tensor([3, 2])[:, None]
    example = torch.randn(2, 3, 3, 2, 2), torch.randint(0, 30, (2, 6)), real
    assert check(Caption, example=example).bugs == ()
    (bug,) = check(Blind, example=example).bugs
    assert bug.name == "mask-unused"
    assert bug.place is not None
    assert bug.place.source.startswith("def forward")


@dataclass
class Context:
    """What an attention is told about its tokens."""

    prefix: torch.Tensor
    key_mask: torch.Tensor | None = None


class Told(Caption):
    """Shows padded frames, too, because it makes a context without their mask."""

    def forward(self, video, words, frame_mask):
        context = Context(prefix=self.frame(video.flatten(2)))
        rows = torch.cat((context.prefix, self.word(words)), dim=1)
        q, k, v = self.qkv(rows).chunk(3, dim=-1)
        mask = context.key_mask
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)[
            :, -words.shape[1] :
        ]


def test_a_record_that_takes_a_mask_and_gets_none_is_the_line():
    real = torch.arange(3) < torch.tensor([3, 2])[:, None]
    example = torch.randn(2, 3, 3, 2, 2), torch.randint(0, 30, (2, 6)), real
    (bug,) = check(Told, example=example).bugs
    assert bug.name == "mask-unused"
    assert bug.place is not None
    assert bug.place.source.startswith("context = Context(")


class Tolerant(Blind):
    """Says that it takes the mask to fit an interface."""

    def forward(self, video, words, frame_mask):
        """Return a row for each word.

        Args:
            video: (batch, frames, 3, height, width).
            words: (batch, length).
            frame_mask: (batch, frames), not used, for compatibility.
        """
        return super().forward(video, words, None)


def test_a_mask_that_is_said_to_be_unused_is_no_bug():
    example = (
        torch.randn(2, 3, 3, 2, 2),
        torch.randint(0, 30, (2, 6)),
        torch.ones(2, 3).bool().tril(),
    )
    assert check(Tolerant, example=example).bugs == ()


class Added(nn.Module):
    """Adds a mask of keys, 0 or −∞, to the scores, tokens first."""

    def __init__(self, dim=32):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def hide(self, scores, mask):
        return scores + mask[:, None]

    def forward(self, query, key, value, key_padding_mask):
        q, k, v = (
            it(x.transpose(0, 1))
            for it, x in zip((self.q, self.k, self.v), (query, key, value), strict=True)
        )
        scores = self.hide(q @ k.mT / q.shape[-1] ** 0.5, key_padding_mask)
        return (scores.softmax(-1) @ v).transpose(0, 1)


class Filled(Added):
    """Takes numbers above 0 for True, of which such a mask has none."""

    def hide(self, scores, mask):
        return scores.masked_fill(mask[:, None] > 0, -torch.inf)


@pytest.mark.parametrize(("target", "names"), [(Added, []), (Filled, ["mask-unused"])])
def test_a_mask_that_is_added_has_an_effect(target, names):
    padding = torch.arange(7) >= torch.tensor([7, 4])[:, None]
    mask = torch.zeros(2, 7).masked_fill(padding, -torch.inf)
    example = torch.randn(5, 2, 32), torch.randn(7, 2, 32), torch.randn(7, 2, 32), mask
    bugs = check(target, example=example).bugs
    assert [bug.name for bug in bugs] == names
    assert all(bug.place and "masked_fill" in bug.place.source for bug in bugs)


class Regardless(nn.Module):
    """Attends to all tokens, whatever are padding."""

    def __init__(self, dim=24):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, notes, pad=None):
        q, k, v = self.qkv(notes).chunk(3, dim=-1)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        weights = scores.softmax(-1)
        return weights @ v


class Compatible(Regardless):
    """Takes pad for compatibility alone."""


@pytest.mark.parametrize(("target", "names"), [(Regardless, ["mask-unused"]), (Compatible, [])])
def test_an_optional_mask_that_nothing_reads_is_suspicious(target, names):
    suspicious = [it for it in check(target).findings if it.level == "suspicious"]
    assert [it.name for it in suspicious] == names
    assert all(it.place and "softmax" in it.place.source for it in suspicious)


class Pooling(nn.Module):
    """Weighs the rows of a sequence by one vector."""

    def __init__(self, dim):
        super().__init__()
        self.score = nn.Linear(dim, 1)

    def weights(self, rows, lengths):
        padding = torch.arange(rows.shape[1]) >= lengths[:, None]
        return self.score(rows).masked_fill(padding[..., None], -torch.inf).softmax(1)

    def forward(self, rows, lengths):
        """Return one row for each sequence.

        Args:
            rows: (batch, length, dim)
            lengths: (batch,), the number of real rows of each sequence
        """
        return (self.weights(rows, lengths) * rows).sum(1)


class Unmasked(Pooling):
    """Weighs padding, too."""

    def forward(self, rows, lengths):
        """Return one row for each sequence.

        Args:
            rows: (batch, length, dim)
            lengths: (batch,), the number of real rows of each sequence
        """
        weights = self.score(rows).softmax(1)
        return (weights * rows).sum(1)


class Text(nn.Module):
    """Pools the rows of a text; all of a batch are of one length."""

    def __init__(self, dim=24):
        super().__init__()
        self.rows, self.pool = nn.Linear(dim, dim), Unmasked(dim)

    def forward(self, x):
        return self.pool(self.rows(x).tanh(), torch.full((len(x),), x.shape[1]))


class Hidden(Text):
    """The same with a pooling that reads the lengths."""

    def __init__(self, dim=24):
        super().__init__()
        self.pool = Pooling(dim)


@pytest.mark.parametrize(("target", "names"), [(Text, ["mask-unused"]), (Hidden, [])])
def test_lengths_that_a_part_requires_and_does_not_read_are_named(target, names):
    bugs = check(target).bugs
    assert [bug.name for bug in bugs] == names
    assert all("Unmasked requires lengths" in bug.proof for bug in bugs)
    assert all(bug.place and "softmax" in bug.place.source for bug in bugs)


class Attending(nn.Module):
    """One head of rows that read others."""

    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x, source, mask):
        scores = self.q(x) @ self.k(source).mT / x.shape[-1] ** 0.5
        return scores.masked_fill(mask == 0, -torch.inf).softmax(-1) @ self.v(source)


class DecoderLayer(nn.Module):
    """Reads the target, and then the source."""

    def __init__(self, d_model=24):
        super().__init__()
        self.own, self.cross = Attending(d_model), Attending(d_model)

    def forward(self, dec, enc, tgt_mask, src_mask):
        x = dec + self.own(dec, dec, tgt_mask)
        return x + self.cross(x, enc, src_mask)


class OneMask(DecoderLayer):
    """Gives the mask of the target to both attentions."""

    def forward(self, dec, enc, tgt_mask, src_mask):
        x = dec + self.own(dec, dec, tgt_mask)
        return x + self.cross(x, enc, tgt_mask)


def test_a_call_that_gets_the_mask_of_another_sequence_is_the_line():
    assert check(DecoderLayer).bugs == ()
    (bug,) = check(OneMask).bugs
    assert bug.name == "mask-unused"
    assert bug.place is not None
    assert bug.place.source == "return x + self.cross(x, enc, tgt_mask)"


class Replaced(nn.Module):
    """Takes a mask like its own, whose True hides a key, in place of that."""

    def __init__(self, dim, num_heads, seq_len=16):
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, num_heads, batch_first=True)
        self.register_buffer("mask", ~torch.ones(seq_len, seq_len).tril().bool())

    def forward(self, x, attention_mask=None):
        T = x.shape[1]
        if attention_mask is None:
            attention_mask = self.mask[:T, :T]
        attention_mask = attention_mask.bool()
        return self.attention(x, x, x, attn_mask=attention_mask, need_weights=False)[0]


class AllVisible(Replaced):
    """Takes a mask whose True keeps a key, as attention_mask does, and hands it to one whose True hides it."""

    def forward(self, x, attention_mask=None):
        if attention_mask is None:
            attention_mask = torch.zeros(x.shape[1], x.shape[1])
        attention_mask = attention_mask.bool()
        return self.attention(x, x, x, attn_mask=attention_mask, need_weights=False)[0]


@pytest.mark.parametrize(("target", "names"), [(Replaced, []), (AllVisible, ["mask-inverted"])])
def test_a_mask_means_what_the_own_one_means_in_whose_place_it_is(target, names):
    assert [it.name for it in check(target).bugs] == names


class Flows(nn.Module):
    """Lets words and questions attend to each other; each has a mask, of padding by its use alone."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.w_c, self.w_q = nn.Linear(dim, 1), nn.Linear(dim, 1)

    def forward(self, C, Q, c_mask, q_mask):
        scores = self.w_c(C) + self.w_q(Q).mT + C @ Q.mT / C.shape[-1] ** 0.5
        scores = self.hide(scores, q_mask)
        context = scores.softmax(-1) @ Q
        best = scores.amax(-1)[:, None].masked_fill(c_mask, float("-inf"))
        return torch.cat([C, context, (best.softmax(-1) @ C).expand_as(C)], dim=-1)

    def hide(self, scores, mask):
        return scores.masked_fill(mask, float("-inf"))


class UnhiddenFlows(Flows):
    """Hides no question."""

    def hide(self, scores, mask):
        scores.masked_fill(mask, float("-inf"))
        return scores


@pytest.mark.parametrize(("target", "names"), [(Flows, []), (UnhiddenFlows, ["mask-unused"])])
def test_masks_of_two_sequences_hide_nothing_of_the_other_one(target, names):
    assert [it.name for it in check(target).bugs] == names
