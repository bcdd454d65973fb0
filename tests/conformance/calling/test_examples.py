"""Examples of a target's arguments: given, made, captured from a model or a test; sizes vary as they allow."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from heedful import check
from heedful.conformance import Example
from heedful.conformance.calling.capture import captured_from_model, captured_from_test
from heedful.conformance.calling.subject import find_subject
from heedful.errors import ArgumentError


class Odd(nn.Module):
    """An attention whose arguments have no conventional names."""

    def __init__(self, size=32):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(size, size) for _ in range(3))

    def forward(self, thing, *, hide=None, extra=None):
        query, key, value = self.a(thing), self.b(thing), self.c(thing)
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if hide is not None:
            scores = scores.masked_fill(hide, -torch.inf)
        return scores.softmax(dim=-1) @ value


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.spare = Odd(), Odd()

    def forward(self, x):
        hide = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.attn(self.attn(x, hide=hide), hide=hide)


def hidden(size: int) -> torch.Tensor:
    return torch.ones(size, size, dtype=torch.bool).triu(1)


@pytest.mark.parametrize(
    "example",
    [
        Example(torch.randn(2, 9, 32), hide=hidden(9)),
        {"thing": torch.randn(2, 9, 32), "hide": hidden(9)},
        lambda: Example(torch.randn(2, 9, 32), hide=hidden(9)),
        Example(torch.randn(9, 9, 32), hide=hidden(9)),
        Example(torch.randn(9, 32), hide=hidden(9)),
    ],
    ids=["example", "keywords", "function", "B equals T", "no batch"],
)
def test_arguments_that_belong_together_vary_together(example):
    subject = find_subject(Odd(), example=example)
    batch = 4 if subject.batched else 1
    for T in (1, 5, 9):
        inputs = subject.draw(batch, T)
        assert subject.arguments(inputs)["hide"].shape == (T, T)
        assert subject.run(inputs).shape == (batch, T, 32)
    assert subject.max_length == 9  # the example's mask says nothing of a tenth token
    report = check(Odd(), example=example)
    assert report.ok, report
    assert not [fact for fact in report.facts if (fact.name, fact.value) == ("causal", "no")]


def test_equal_entries_allow_any_number_of_tokens():
    everything = torch.zeros(9, 9, dtype=torch.bool)
    subject = find_subject(Odd(), example=Example(torch.randn(2, 9, 32), hide=everything))
    assert subject.max_length is None
    assert subject.run(subject.draw(3, 20)).shape == (3, 20, 32)


def test_a_batch_mask_beside_as_many_tokens_is_recognized_by_its_first_axis():
    def attend(things, lengths_of_all):
        scores = things @ things.mT / things.shape[-1] ** 0.5
        return scores.masked_fill(lengths_of_all[:, None], -torch.inf).softmax(dim=-1) @ things

    hide = torch.tensor([[False, False, False, True]]).expand(4, 4)
    subject = find_subject(attend, example=(torch.randn(4, 4, 8), hide))
    assert subject.arguments(subject.draw(3, 2))["lengths_of_all"].shape == (3, 2)


def test_sizes_are_fixed_where_the_target_allows_no_others():
    bias = nn.Parameter(torch.randn(6, 6))

    def windowed(patches):
        scores = patches @ patches.mT / patches.shape[-1] ** 0.5 + bias
        return scores.softmax(dim=-1) @ patches

    subject = find_subject(windowed, example=(torch.randn(2, 6, 8),))
    assert subject.fixed_sizes == (2, 6)


class Windows(nn.Module):
    """Attention among the 4 × 4 pixels of a window (B, Y, X, C), with a bias for each pair of pixels."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(24, 72), nn.Linear(24, 24)
        self.bias = nn.Parameter(torch.randn(16, 16))

    def forward(self, image):
        B, H, W, C = image.shape
        query, key, value = self.qkv(image.view(B, H * W, C)).chunk(3, dim=-1)
        weights = (query @ key.mT * C**-0.5 + self.bias).softmax(dim=-1)
        return self.proj(weights @ value).view(B, H, W, C)


class Channels(nn.Module):
    """Attention among the pixels of a feature map (B, C, Y, X)."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Conv2d(24, 72, 1)

    def forward(self, image):
        query, key, value = self.qkv(image).flatten(2).chunk(3, dim=1)
        weights = (query.mT @ key * 24**-0.5).softmax(dim=-1)
        return (value @ weights.mT).view(image.shape)


class Groups(nn.Module):
    """Attention among the 6 tokens of each group, (B, G, T, C), with a bias for each pair of tokens."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(24, 72)
        self.bias = nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        return (query @ key.mT * 24**-0.5 + self.bias).softmax(dim=-1) @ value


@pytest.mark.parametrize(
    ("module", "shape", "layout"),
    [
        (Windows, (2, 4, 4, 24), "(B, Y, X, C)"),
        (Channels, (2, 24, 5, 3), "(B, C, Y, X)"),
        (Groups, (2, 3, 6, 24), "(B, H, T, C)"),
    ],
)
def test_the_axes_of_tokens_are_those_that_mix(module, shape, layout):
    torch.manual_seed(0)
    subject = find_subject(module(), example=(torch.randn(shape),))
    assert subject.layout == layout
    report = check(module(), example=(torch.randn(shape),))
    assert report.ok, report


def test_a_pooled_result_stands_for_the_row_of_each_token():
    class Pooling(Odd):
        def forward(self, thing):
            return super().forward(thing).mean(dim=1)

    subject = find_subject(Pooling(), example=(torch.randn(2, 9, 32),))
    assert subject.convention.pooled
    assert subject.run(subject.draw(3, 5)).shape == (3, 5, 32)
    assert check(Pooling(), example=(torch.randn(2, 9, 32),)).ok


def test_a_size_that_happens_to_be_that_of_the_batch_stays():
    def attend(things, angles):
        assert angles.shape[-1] == 2
        scores = things @ things.mT / things.shape[-1] ** 0.5 + (angles @ angles.mT)
        return scores.softmax(dim=-1) @ things

    subject = find_subject(attend, example=(torch.randn(2, 9, 8), torch.randn(1, 9, 2)))
    assert subject.arguments(subject.draw(3, 5))["angles"].shape == (1, 5, 2)


def test_a_cache_in_an_example_stays_empty_while_layouts_are_tried():
    class Cache:
        def __init__(self):
            self.keys = None

        def update(self, keys):
            self.keys = keys if self.keys is None else torch.cat((self.keys, keys), dim=1)
            return self.keys

    def attend(x, mask, cache):
        scores = x @ cache.update(x).mT / x.shape[-1] ** 0.5
        weights = (scores + mask.expand_as(scores)).softmax(dim=-1)
        return weights @ cache.keys

    example = torch.randn(2, 9, 8), torch.zeros(2, 1, 9), Cache()
    subject = find_subject(attend, example=example)
    assert subject.layout == "(B, T, C)"
    assert example[2].keys is None


@pytest.mark.parametrize("columns", [False, True])
def test_ids_may_be_words_first_if_each_column_gives_a_row(columns):
    embedding, score = nn.Embedding(11, 8).double(), nn.Linear(8, 1).double()

    def pooled(ids):
        words = embedding(ids.T if columns else ids)
        return (score(words).softmax(dim=1) * words).sum(dim=1)

    ids = torch.arange(10).view(2, 5)
    convention = find_subject(pooled, example=(ids.T if columns else ids,)).convention
    assert convention.layout == ("(T, B) ids" if columns else "(B, T) ids")
    assert convention.pooled


def test_an_int_mask_beside_token_ids_takes_no_tokens():
    embedding = nn.Embedding(11, 8).double()

    def read(ids, visible):
        x = embedding(ids)
        scores = (x @ x.mT / 8**0.5).masked_fill(visible[:, None] == 0, -torch.inf)
        return scores.softmax(dim=-1) @ x

    ids = torch.arange(10).view(2, 5)
    subject = find_subject(read, example=(ids, torch.ones(2, 5, dtype=torch.int64)))
    assert subject.convention.names == ("ids",)
    assert subject.run(subject.draw(3, 4)).shape == (3, 4, 8)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ((torch.randn(2, 9, 32), 3), r"the arguments of Odd\(thing, hide, extra\).*too many"),
        ({"thing": torch.randn(2, 9, 32), "mask": 3}, "unexpected keyword argument 'mask'"),
        (lambda: 1 / 0, "raises ZeroDivisionError"),
        (Example(3), "runs|raises"),
    ],
)
def test_an_example_that_cannot_be_used(example, message):
    if isinstance(example, Example):  # the target's own exception on the user's example is a bug
        assert [it.name for it in check(Odd(), example=example).bugs] == ["crashes"]
        return
    with pytest.raises(ArgumentError, match=message):
        check(Odd(), example=example)


def test_an_example_that_does_not_fit_a_guessed_constructor_is_no_bug():
    class Sized(Odd):
        def __init__(self, d_model):
            super().__init__(d_model)

    example = (torch.randn(2, 9, 40),)
    with pytest.raises(ArgumentError, match=r"constructor's arguments.*d_model"):
        check(Sized, example=example)
    assert check(Sized, example=example, arguments={"d_model": 40}).ok


def test_a_module_is_checked_with_the_inputs_of_its_first_call_in_a_model():
    report = check(Model(), module="attn", example=torch.randn(2, 9, 32))
    assert report.target == "Odd"
    facts = {fact.name: fact.value for fact in report.facts}
    assert facts["example"] == "the first of 2 calls of attn in a run of Model"
    assert facts["causal"] == "yes"
    captured = captured_from_model(
        Model(), "attn", None
    )  # the model itself is called as it is found out
    assert captured.example.kwargs["hide"].shape == (5, 5)
    assert nn.Module.__call__.__name__ == "_wrapped_call_impl"


def test_a_module_that_does_not_exist_or_is_not_called():
    with pytest.raises(ArgumentError, match="look like an attention: attn"):
        check(Model(), module="blocks.0", example=torch.randn(2, 9, 32))
    with pytest.raises(ArgumentError, match="spare, which is not called"):
        check(Model(), module="spare", example=torch.randn(2, 9, 32))
    with pytest.raises(ArgumentError, match="mat1 and mat2"):
        check(Model(), module="spare", example=torch.randn(2, 9, 31))


def test_a_call_is_captured_from_a_test_although_it_fails_later():
    def test():
        Odd(16)(torch.randn(2, 4, 16), extra=3)
        raise AssertionError

    captured = captured_from_test(test, Odd, "test")
    assert captured.example.kwargs == {"extra": 3}
    assert captured.module.a.in_features == 16
    with pytest.raises(ArgumentError, match=r"fixtures.*test\(tmp_path\)"):
        captured_from_test(lambda tmp_path: None, Odd, "test")
    with pytest.raises(ArgumentError, match="which calls none"):
        captured_from_test(lambda: None, Odd, "test")


def test_a_debugger_keeps_its_place():
    calls = []
    sys.settrace(lambda *event: calls.append(event))
    try:
        report = check(Odd(), example=torch.randn(2, 5, 32))
        assert sys.gettrace() is not None
    finally:
        sys.settrace(None)
    assert report.coverage is None


class Aligned(nn.Module):
    """Attends to a second sequence, of which only the first tokens are real."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(12, 16)

    def forward(self, x, other, lengths):
        scores = self.proj(x) @ other.mT / 4
        real = torch.arange(other.shape[1]) < lengths[:, None]
        return scores.masked_fill(~real[:, None], -torch.inf).softmax(-1) @ other


def test_lengths_of_a_second_sequence_hide_a_part_of_it():
    example = (torch.randn(2, 5, 12), torch.randn(2, 7, 16), torch.tensor([7, 4]))
    subject = find_subject(Aligned(), example=example)
    arguments = subject.arguments(subject.draw(3, 5))
    assert arguments["lengths"].tolist() == [4, 4, 4]
    assert arguments["other"].shape == (3, 7, 16)


def test_a_later_axis_of_the_batch_size_is_not_the_batch():
    example = (torch.randn(2, 5, 12), torch.randn(2, 2, 16), torch.tensor([2, 2]))
    subject = find_subject(Aligned(), example=example)
    assert subject.arguments(subject.draw(3, 5))["other"].shape == (3, 2, 16)


def test_a_nested_tensor_is_refused():
    nested = torch.nested.nested_tensor(
        [torch.randn(3, 32), torch.randn(5, 32)], layout=torch.jagged
    )
    with pytest.raises(ArgumentError, match="no tensor of tokens"):
        check(NestedAttention(), example=nested)


class NestedAttention(nn.Module):
    """Attends within sequences of different lengths, which a nested tensor holds."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(32, 32)

    def forward(self, x):
        q = self.proj(x).unflatten(-1, (2, 16)).transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2)


def test_a_query_of_one_row_stands_beside_the_sequence_that_holds_the_tokens():
    class Interest(nn.Module):
        def __init__(self):
            super().__init__()
            self.score = nn.Linear(24, 1)

        def forward(self, item, history, length):
            beside = torch.cat(
                [item[:, None].expand_as(history), history, item[:, None] * history], -1
            )
            scores = self.score(beside).squeeze(-1)
            hidden = torch.arange(history.shape[1]) >= length[:, None]
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            return (weights[:, None] @ history).squeeze(1)

    example = (torch.randn(2, 8), torch.randn(2, 5, 8), torch.tensor([5, 3]))
    subject = find_subject(Interest(), example=example)
    assert subject.convention.names == ("history",)
    assert subject.layout == "(B, T, C)"
    assert subject.convention.pooled


class DecoderLayer(nn.Module):
    """Attends to the earlier words of the target, and then to the source."""

    def __init__(self, width=32):
        super().__init__()
        self.own, self.cross = (nn.MultiheadAttention(width, 4, batch_first=True) for _ in range(2))

    def forward(self, inputs, encoder_outputs, padding, encoder_padding):
        T = inputs.shape[1]
        later = torch.ones(T, T, dtype=torch.bool).triu(1)
        x = inputs + self.own(inputs, inputs, inputs, padding, attn_mask=later)[0]
        return x + self.cross(x, encoder_outputs, encoder_outputs, encoder_padding)[0]


def test_two_sequences_of_the_same_length_are_not_taken_for_one():
    padding = torch.arange(6) >= torch.tensor([6, 4])[:, None]
    encoder_padding = torch.arange(6) >= torch.tensor([5, 6])[:, None]
    example = Example(torch.randn(2, 6, 32), torch.randn(2, 6, 32), padding, encoder_padding)
    names = {finding.name for finding in check(DecoderLayer(), example=example).bugs}
    assert names.isdisjoint({"future-leak", "padding-leak"})
