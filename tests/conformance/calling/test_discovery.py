"""The calling convention of a target is found by trial: its layout, its dtype, its arguments."""

from __future__ import annotations

import time
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import heedful
from conformance.calling.attentions import (
    BATCH_FIRST,
    HEADS_FIRST,
    HEADS_LAST,
    IDS,
    TOKENS_FIRST,
    UNBATCHED,
    Misspelt,
    Projected,
    Rotary,
    TokensFirst,
    Unbatched,
    Weighted,
    Wrapped,
    WrongLayout,
    attend,
)
from heedful.conformance import check
from heedful.conformance.calling import discovery
from heedful.conformance.calling.influence import mixes_sequences
from heedful.conformance.calling.subject import find_subject
from heedful.conformance.calling.target import TargetError, make_target
from heedful.errors import ArgumentError
from heedful.nn import MultiHeadAttention
from heedful.textbook import causal, multi_head, self_attention, simplified


class ReadByLayers(Projected):
    """Has the attribute that `nn.TransformerEncoderLayer` reads of its attention, and no use for it."""

    def __init__(self, d_model):
        super().__init__(d_model)
        self.batch_first = False


@pytest.mark.parametrize(
    ("target", "layout", "width"),
    [
        (Projected, BATCH_FIRST, 24),
        (ReadByLayers, BATCH_FIRST, 24),
        (Projected(10), BATCH_FIRST, 10),
        (TokensFirst, TOKENS_FIRST, 24),
        (Unbatched, UNBATCHED, 24),
        (Wrapped, TOKENS_FIRST, 24),
        (WrongLayout, BATCH_FIRST, 24),
        (Weighted, BATCH_FIRST, 24),
        (nn.MultiheadAttention(12, 4), TOKENS_FIRST, 12),
        (nn.MultiheadAttention(12, 4, batch_first=True), BATCH_FIRST, 12),
        (nn.TransformerEncoderLayer(12, 4, 20), TOKENS_FIRST, 12),
        (nn.TransformerEncoderLayer(12, 4, 20, batch_first=True), BATCH_FIRST, 12),
        (nn.TransformerDecoderLayer(12, 4, 20, batch_first=True), BATCH_FIRST, 12),
        (self_attention.SelfAttentionV1, BATCH_FIRST, 24),
        (causal.CausalAttention, BATCH_FIRST, 24),
        (multi_head.MultiHeadAttention, BATCH_FIRST, 24),
        (multi_head.MultiHeadAttentionWrapper, BATCH_FIRST, 24),
        (MultiHeadAttention(12, 4, num_kv_heads=2), BATCH_FIRST, 12),
        (MultiHeadAttention(12, 4, d_context=12), BATCH_FIRST, 12),
        (simplified.attend, BATCH_FIRST, 24),
        (heedful.attention, HEADS_FIRST, 6),
        (F.scaled_dot_product_attention, HEADS_FIRST, 6),
        (lambda Q, K, V: attend(Q, K, V), HEADS_FIRST, 6),
        (lambda q, k, v: (q @ k.transpose(0, 1)).softmax(1) @ v, UNBATCHED, 6),
        (lambda q, k, v: torch.bmm(torch.bmm(q, k.mT).softmax(-1), v), BATCH_FIRST, 6),
    ],
    ids=lambda it: it if isinstance(it, str) else getattr(it, "__name__", type(it).__name__),
)
def test_the_layout_is_found(target, layout, width):
    subject = find_subject(target)
    assert subject.layout == layout
    B = 2 if subject.batched else 1
    inputs = subject.draw(B, 7)
    for tokens in inputs.arguments.values():
        assert tokens.shape[:2] == (B, 7)
        assert tokens.shape[-1] == width
    output = subject.run(inputs)
    assert output.shape[:2] == (B, 7)
    assert output.dtype == torch.float64
    assert torch.equal(subject.record(inputs).output, output)


def test_a_layout_with_heads_last_is_read_from_the_source():
    def attention(query, key, value):
        B, T, H, D = query.shape  # noqa: RUF059 - declares the layout
        q, k, v = (it.transpose(1, 2) for it in (query, key, value))
        return attend(q, k, v).transpose(1, 2)

    subject = find_subject(attention)
    assert subject.layout == HEADS_LAST
    inputs = subject.draw(2, 7)
    given = [it.transpose(1, 2) for it in inputs.arguments.values()]
    expected = F.scaled_dot_product_attention(*given).transpose(1, 2)
    torch.testing.assert_close(subject.run(inputs), expected)


def test_a_batch_equals_its_sequences_run_alone_in_every_layout():
    for target in (Projected, TokensFirst, nn.MultiheadAttention(12, 4), attend):
        subject = find_subject(target)
        inputs = subject.draw(2, 7)
        alone = [subject.run(inputs.entry(b)) for b in range(2)]
        torch.testing.assert_close(subject.run(inputs), torch.cat(alone))


def test_a_target_that_computes_in_float32_gets_float32_tokens():
    assert find_subject(Projected).dtype == torch.float64
    assert find_subject(Rotary).dtype == torch.float32


def test_an_example_replaces_unconventional_names():
    def unusual(a, matrix, divisor):
        return (a @ matrix @ a.mT / divisor).softmax(-1) @ a

    with pytest.raises(ArgumentError, match=r"matrix.*example"):
        find_subject(unusual)
    subject = find_subject(unusual, example=(torch.randn(2, 5, 8), torch.randn(8, 8), 3.0))
    assert subject.run(subject.draw(2, 7)).shape == (2, 7, 8)
    tokens_first = find_subject(nn.MultiheadAttention(12, 4), example=torch.randn(5, 3, 12))
    assert tokens_first.layout == TOKENS_FIRST


class LastLogits(nn.Module):
    """A model that returns only the logits of the last token unless it gets targets."""

    def __init__(self, vocab_size, n_embd):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, n_embd)

    def forward(self, idx, targets=None):
        x = self.embedding(idx)
        x = attend(x, x, x) @ self.embedding.weight.mT
        return (x[:, [-1]], None) if targets is None else (x, F.cross_entropy(x.mT, targets))


def test_a_model_gets_targets_if_only_they_give_logits_of_every_token():
    subject = find_subject(LastLogits)
    assert subject.layout == IDS
    assert subject.run(subject.draw(2, 7)).shape == (2, 7, 37)


def test_an_exception_in_the_target_is_reported_as_its_cause():
    with pytest.raises(TargetError) as raised:
        find_subject(Misspelt)
    assert isinstance(raised.value.__cause__, NameError)


class InOneSequence(Projected):
    """Joins all sequences into one, whatever its second argument is."""

    def forward(self, x, level):  # pyright: ignore[reportIncompatibleMethodOverride]
        B, T, C = x.shape
        return attend(*self.split(x.reshape(1, B * T, C))).view(B, T, C) + level


class InSequences(Projected):
    """Joins all sequences into as many as its second argument says, or into one."""

    def forward(self, x, count: int):  # pyright: ignore[reportIncompatibleMethodOverride]
        B, T, C = x.shape
        return attend(*self.split(x.reshape(count or 1, -1, C))).view(B, T, C)


class Refusing(Projected):
    """Takes tokens first, as documented, of another length than ours; with batches first, it mixes them.

    Args:
        x: (time, batch, channels).
    """

    def forward(self, x):
        if len(x) == discovery.TRIAL_SIZES[1]:
            raise ValueError("Expected another length.")
        return attend(*(it.transpose(0, 1) for it in self.split(x))).transpose(0, 1)


def test_a_reading_in_which_sequences_mix_is_the_last_resort():
    told, untold = find_subject(InSequences), find_subject(InOneSequence)
    assert mixes_sequences(told, told.draw(2, 5)) is False
    assert mixes_sequences(untold, untold.draw(2, 5)) is True


def test_the_last_resort_blames_nothing():
    report = check(InOneSequence)
    assert [it.name for it in report.findings if it.level == "suspicious"] == ["batch-mixed"]
    assert report.bugs == ()


def test_a_layout_that_the_target_contradicts_is_no_last_resort():
    with pytest.raises(ArgumentError, match="Expected another length"):
        find_subject(Refusing)


class Planned(Projected):
    """Needs an object that nobody can guess."""

    dtypes: ClassVar[list[torch.dtype]] = []

    def forward(self, x, plan):  # pyright: ignore[reportIncompatibleMethodOverride]
        Planned.dtypes.append(x.dtype)
        return plan.route(super().forward(x))


def test_what_another_dtype_cannot_change_is_tried_in_one_alone():
    with pytest.raises(ArgumentError, match="no attribute 'route'"):
        discovery.find_convention(make_target(Planned(24)), None)
    assert torch.float64 in Planned.dtypes
    assert torch.float32 not in Planned.dtypes


class Hesitant(Projected):
    """Takes its time, as long as it does not get the mask that it needs."""

    def forward(self, x, mask):  # pyright: ignore[reportIncompatibleMethodOverride]
        if mask is None or mask.dim() < 4:
            time.sleep(0.06)
            raise ValueError("Expected a mask (B, 1, 1, T).")
        return attend(*self.split(x), ~mask[:, 0])


def test_a_call_gets_its_own_time_after_slow_ones(monkeypatch):
    monkeypatch.setattr(discovery, "TRIAL_SECONDS", 0.1)
    subject = find_subject(Hesitant(24))
    assert subject.padding is not None
    assert subject.padding.form == "(B, 1, 1, T)"


class OfHeadsAlone(nn.Module):
    """Attends without a layer, so that nothing but the heads tells the width."""

    def __init__(self, dim, num_heads=8, axis=-1):
        super().__init__()
        self.num_heads, self.head_dim, self.axis = num_heads, dim // num_heads, axis

    def forward(self, x):
        B, T, C = x.shape
        x = x.reshape(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        weights = (x @ x.mT * self.head_dim**-0.5).softmax(self.axis)
        return (weights @ x).transpose(1, 2).reshape(B, T, C)


@pytest.mark.parametrize(("axis", "names"), [(-1, []), (-2, ["softmax-wrong-dim"])])
def test_heads_and_their_size_tell_the_width(axis, names):
    report = check(OfHeadsAlone, arguments={"axis": axis})
    assert [it.name for it in report.bugs] == names
