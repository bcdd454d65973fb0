"""The arguments that take masks are found by trial: their form, dtype and polarity."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import heedful
from conformance.calling.attentions import Projected, TokensFirst, attend
from heedful.conformance.calling.subject import Subject, find_subject
from heedful.errors import ArgumentError
from heedful.masks import Causal
from heedful.nn import MultiHeadAttention

CAUSAL = torch.ones(6, 6, dtype=torch.bool).tril()


class Kept(Projected):
    """Takes an attention_mask (B, T), 1 for real tokens."""

    def forward(self, x, attention_mask=None):
        hidden = None if attention_mask is None else attention_mask[:, None] == 0
        return attend(*self.split(x), hidden)


class Subtracted(Projected):
    """Applies the same mask by arithmetic, so that a Boolean fails."""

    def forward(self, x, attention_mask=None):
        q, k, v = self.split(x)
        scores = q @ k.mT
        if attention_mask is not None:
            scores = scores + (1.0 - attention_mask[:, None]) * -1e4
        return scores.softmax(-1) @ v


class Hidden(TokensFirst):
    """Takes tokens first, and a key_padding_mask (B, T), True for padding."""

    def forward(self, x, key_padding_mask=None):
        T, B, C = x.shape  # noqa: RUF059 - declares the layout
        q, k, v = (it.transpose(0, 1) for it in self.split(x))
        hidden = None if key_padding_mask is None else key_padding_mask[:, None]
        return attend(q, k, v, hidden).transpose(0, 1)


class Inverted(Projected):
    """Takes an attention_mask whose polarity contradicts the convention."""

    def forward(self, x, attention_mask=None):
        hidden = None if attention_mask is None else attention_mask[:, None] == 1
        return attend(*self.split(x), hidden)


class Added(Projected):
    def forward(self, x, mask=None):
        q, k, v = self.split(x)
        scores = q @ k.mT
        return (scores if mask is None else scores + mask).softmax(-1) @ v


class Required(Projected):
    def forward(self, x, mask):
        return attend(*self.split(x), mask == 0)


class Lengths(Projected):
    def forward(self, x, lengths=None):
        hidden = None
        if lengths is not None:
            hidden = torch.arange(x.shape[1]) >= lengths[:, None, None]
        return attend(*self.split(x), hidden)


class IgnoresMask(Projected):
    def forward(self, x, attention_mask=None):
        return attend(*self.split(x))


class CausalAndPadded(Projected):
    """Is causal, and takes a padding mask too."""

    def forward(self, x, padding_mask=None):
        T = x.shape[1]
        hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
        if padding_mask is not None:
            hidden = hidden | ~padding_mask[:, None]
        return attend(*self.split(x), hidden)


def padding_of(subject: Subject):
    padding = subject.padding
    if padding is None:
        return None
    return padding.name, padding.form, padding.dtype, padding.true_keeps


@pytest.mark.parametrize(
    ("target", "padding"),
    [
        (Projected, None),
        (Kept, ("attention_mask", "(B, T)", torch.bool, True)),
        (Subtracted, ("attention_mask", "(B, T)", torch.int64, True)),
        (Hidden, ("key_padding_mask", "(B, T)", torch.bool, False)),
        (Inverted, ("attention_mask", "(B, T)", torch.bool, False)),
        (Added, ("mask", "(B, 1, T)", torch.float64, True)),
        (Required, ("mask", "(B, 1, T)", torch.bool, True)),
        (Lengths, ("lengths", "(B,)", torch.int64, True)),
        (CausalAndPadded, ("padding_mask", "(B, T)", torch.bool, True)),
        (nn.MultiheadAttention(12, 4), ("key_padding_mask", "(B, T)", torch.bool, False)),
        (nn.TransformerEncoderLayer(12, 4, 20), ("src_key_padding_mask", "(B, T)", torch.bool, False)),
        (nn.TransformerDecoderLayer(12, 4, 20), ("tgt_key_padding_mask", "(B, T)", torch.bool, False)),
        (F.scaled_dot_product_attention, ("attn_mask", "(B, 1, 1, T)", torch.bool, True)),
        (MultiHeadAttention(12, 4), ("mask", "(B, 1, T, T)", torch.bool, True)),
    ],
    ids=lambda it: getattr(it, "__name__", type(it).__name__),
)  # fmt: skip
def test_a_padded_batch_equals_each_sequence_alone(target, padding):
    subject = find_subject(target)
    assert padding_of(subject) == padding
    if padding is None:
        return
    inputs = subject.draw(2, 6)
    keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    padded = subject.run(inputs, keep=keep)
    torch.testing.assert_close(padded[1:, :4], subject.run(inputs.entry(1).tokens(0, 4)))
    torch.testing.assert_close(padded[:1], subject.run(inputs.entry(0)))


@pytest.mark.parametrize(
    "target",
    [
        *(Added, Required, nn.MultiheadAttention(12, 4), nn.TransformerEncoderLayer(12, 4, 20)),
        *(
            F.scaled_dot_product_attention,
            heedful.attention,
            MultiHeadAttention(12, 4, causal=False),
        ),
    ],
    ids=lambda it: getattr(it, "__name__", type(it).__name__),
)
def test_an_attention_mask_hides_later_keys(target):
    subject = find_subject(target)
    inputs = subject.draw(2, 6)
    masked = subject.run(inputs, attend=CAUSAL)
    later = subject.run(inputs.changed(0, 4), attend=CAUSAL)
    torch.testing.assert_close(masked[0, :4], later[0, :4])
    assert (masked[0, 4:] != later[0, 4:]).all()
    # both masks at once, in one argument or two
    keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    both = subject.run(inputs, keep=keep, attend=CAUSAL)
    torch.testing.assert_close(both[1, :4], masked[1, :4])


def test_an_ignored_mask_is_not_effective():
    padding = find_subject(IgnoresMask).padding
    assert padding is not None
    assert not padding.effective
    assert padding.declared is True


def test_lengths_cannot_express_left_padding():
    subject = find_subject(Lengths)
    keep = torch.tensor([[True] * 6, [False] * 2 + [True] * 4])
    with pytest.raises(ArgumentError, match="first"):
        subject.run(subject.draw(2, 6), keep=keep)


def test_a_function_without_mask_arguments_has_no_masks():
    subject = find_subject(lambda query, key, value: heedful.attention(query, key, value, Causal()))
    assert subject.padding is None
    assert subject.attention_mask is None


class Described(Projected):
    """Takes a mask whose name says nothing, and which hides queries instead of keys."""

    def forward(self, x, real):  # pyright: ignore[reportIncompatibleMethodOverride]
        """Attend.

        real: (batch, length), 1 at real tokens and 0 at padding
        """
        return attend(*self.split(x), (real == 0)[:, :, None])


class Counted(Projected):
    """Takes the numbers of real tokens under a name of its own."""

    def forward(self, x, xlens):  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden = torch.arange(x.shape[1]) >= xlens[:, None]
        return attend(*self.split(x), hidden[:, None])


class Biased(Projected):
    """Takes a bias that hides, and a mask whose fill does not."""

    def forward(self, x, mask=None, src_mask=None):
        q, k, v = self.split(x)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores + mask
        if src_mask is not None:
            scores = scores.masked_fill((src_mask == 0)[:, None], -1e-9)
        return scores.softmax(-1) @ v


def test_a_mask_that_the_docstring_describes_is_found_although_it_hides_no_key():
    padding = find_subject(Described(12)).padding
    assert padding is not None
    assert (padding.name, padding.hides, padding.declared) == ("real", False, True)
    assert [bug.name for bug in heedful.check(Described(12)).bugs] == ["mask-broadcast"]


def test_lengths_of_any_name_are_found():
    padding = find_subject(Counted(12)).padding
    assert padding is not None
    assert (padding.name, padding.form) == ("xlens", "(B,)")


def test_a_second_mask_that_does_not_hide_is_kept_and_checked():
    subject = find_subject(Biased(12))
    assert subject.padding is not None
    assert subject.padding.name == "mask"
    assert [it.name for it in subject.weak] == ["src_mask"]
    (bug,) = heedful.check(Biased(12)).bugs
    assert bug.name == "mask-fill-too-small"
    assert bug.place is not None
    assert "-1e-9" in bug.place.source


class PerQuery(Projected):
    """Takes a mask of which the first sequence's part counts, if it is not as documented."""

    def forward(self, x, visible=None):
        """
        x: of shape (batch, sequence, width).
        visible: a mask of shape (sequence, sequence), true where a query sees a key.
        """
        q, k, v = self.split(x)
        if visible is not None and visible.ndim == 3:
            visible = visible[0]
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return attend(q, k, v, ~(causal if visible is None else causal & visible))


class PerQueryAlone(Projected):
    """Is causal only beside a mask."""

    def forward(self, x, visible=None):
        """
        visible: (length, length), true where a query sees a key.
        """
        hidden = None
        if visible is not None:
            hidden = ~(visible & torch.ones_like(visible).tril())
        return attend(*self.split(x), hidden)


def test_a_mask_has_the_shape_that_the_docstring_gives_it():
    subject = find_subject(PerQuery)
    assert subject.padding is None
    assert subject.attention_mask is not None
    assert subject.attention_mask.form == "(T, T)"
    assert not heedful.check(PerQuery, causal=True).bugs


def test_a_causal_mask_beside_another_one_alone_is_blamed_where_it_asks_for_that():
    (leak,) = heedful.check(PerQueryAlone, causal=True).bugs
    assert leak.name == "future-leak"
    assert leak.place is not None
    assert leak.place.source == "if visible is not None:"
