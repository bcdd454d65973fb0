"""Parts that a constructor takes, rows before those of the tokens, and the calls that are tried."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conformance.calling.attentions import attend
from heedful import check
from heedful.conformance.calling.construction import instantiate
from heedful.conformance.calling.isolation import restored
from heedful.conformance.calling.subject import find_subject


class OfParts(nn.Module):
    """Takes its layers ready-made, as wrappers of quantized ones do."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        qkv_proj: nn.Module,
        o_proj: nn.Module,
        norm: nn.Module,
        pooler: nn.Module | None,
    ):
        super().__init__()
        self.num_heads, self.qkv_proj, self.o_proj = num_heads, qkv_proj, o_proj
        self.norm, self.pooler = norm, pooler

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv_proj(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (it.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for it in (q, k, v))
        context = F.scaled_dot_product_attention(q, k, v)
        return self.o_proj(context.transpose(1, 2).flatten(2))


def test_parameters_that_take_any_module_get_one_by_their_names():
    made = instantiate(OfParts, {})
    assert made.qkv_proj.out_features == 3 * made.qkv_proj.in_features
    assert isinstance(made.norm, nn.LayerNorm)
    assert made.pooler is None
    assert not check(OfParts).bugs


class Distant(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor, distances: Tensor) -> Tensor:
        return attend(*self.qkv(x).chunk(3, dim=-1)) + distances


class Forgetful(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.attention = Distant(dim)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(x)


def test_a_layer_that_is_called_without_a_required_argument_crashes_whatever_the_input():
    (bug,) = check(Forgetful).bugs
    assert bug.name == "crashes"
    assert bug.place is not None
    assert bug.place.source == "return x + self.attention(x)"


class Started(nn.Module):
    """An encoder that returns the row of its start token, too."""

    def __init__(self, dim: int, first: bool = True):
        super().__init__()
        self.start, self.qkv = nn.Parameter(torch.randn(1, 1, dim)), nn.Linear(dim, 3 * dim)
        self.first = first

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        start = self.start.expand(len(x), -1, -1)
        x = torch.cat([start, x] if self.first else [x, start], dim=1)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if key_padding_mask is not None:
            hidden = F.pad(key_padding_mask, (1, 0) if self.first else (0, 1))
            scores = scores.masked_fill(hidden[:, None], -torch.inf)
        return x + scores.softmax(-1) @ v


def test_a_row_before_those_of_the_tokens_is_found_and_the_tokens_rows_are_their_own():
    subject = find_subject(Started)
    assert (subject.convention.rows_before, subject.convention.pooled) == (1, False)
    assert not check(Started).bugs
    assert find_subject(Started, arguments={"first": False}).convention.pooled  # a row behind them


class Latents(nn.Module):
    def __init__(self, dim: int, num_latents: int = 256):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, dim))
        self.kv = nn.Linear(dim, 2 * dim)

    def forward(self, x: Tensor) -> Tensor:
        return attend(self.latents.expand(len(x), -1, -1), *self.kv(x).chunk(2, dim=-1))


def test_a_model_of_many_latents_is_built_with_few():
    subject = find_subject(Latents)
    assert subject.convention.pooled
    assert subject.module is not None
    assert len(subject.module.latents) < 16


class Segmented(nn.Module):
    """Attends within segments, and refuses lengths that are no multiple of theirs."""

    def __init__(self, dim: int, segment_len: int = 6):
        super().__init__()
        self.segment_len, self.qkv = segment_len, nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor) -> Tensor:
        count, rest = divmod(x.shape[1], self.segment_len)
        if rest:
            raise ValueError("the length must be divisible by that of a segment")
        parts = (attend(*self.qkv(it).chunk(3, dim=-1)) for it in x.chunk(count, dim=1))
        return torch.cat([*parts], dim=1)


def test_there_are_two_segments_of_tokens():
    assert find_subject(Segmented).convention.fixed_sizes == (3, 12)


class Biased(nn.Module):
    def __init__(self, dim: int, keeps: bool = True):
        super().__init__()
        self.qkv, self.keeps = nn.Linear(dim, 3 * dim), keeps

    def forward(self, x: Tensor, attention_bias: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x)[:, None].chunk(3, dim=-1)
        if attention_bias is not None:
            attention_bias = attention_bias[:, :, : x.shape[1], : x.shape[1]].to(x.dtype)
        bias = attention_bias if self.keeps else None
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)[:, 0]


@pytest.mark.parametrize(("keeps", "names"), [(True, []), (False, ["mask-unused"])])
def test_an_attention_bias_is_a_mask_that_is_added(keeps, names):
    assert [it.name for it in check(Biased, arguments={"keeps": keeps}).bugs] == names


class OfOneMask(nn.Module):
    """Adds two axes to one mask for all sequences."""

    def __init__(self, dim: int, n_head: int):
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask.unsqueeze(0).unsqueeze(1) == 1, -1e9)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C)


def test_a_mask_that_gives_the_scores_further_axes_is_of_another_form():
    subject = find_subject(OfOneMask)
    assert subject.padding is None
    assert subject.attention_mask is not None
    assert subject.attention_mask.form == "(T, T)"
    assert not check(OfOneMask).bugs


class Recommender(nn.Module):
    """Reads ids first: no vectors in their place can be right, whatever the other arguments are."""

    calls = 0

    def __init__(self, n_items: int, max_len: int, embed_size: int = 20):
        super().__init__()
        self.item_embed, self.qkv = nn.Embedding(n_items, embed_size), nn.Linear(embed_size, 60)
        self.pos_embed = nn.Parameter(torch.randn(max_len, embed_size))

    def forward(
        self,
        sequence: Tensor,
        positive: Tensor | None,
        negative: Tensor | None,
        padding_mask: Tensor,
    ) -> tuple[Tensor, Tensor | None]:
        type(self).calls += 1
        x = self.item_embed(sequence) + self.pos_embed
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if padding_mask is not None:
            scores = scores.masked_fill(padding_mask[:, None], -1e9)
        liked = None
        if positive is not None and negative is not None:
            liked = self.item_embed(positive) - self.item_embed(negative)
        return x + scores.softmax(-1) @ v, liked


def test_calls_that_fail_before_they_read_their_tokens_are_not_repeated():
    subject = find_subject(Recommender)
    assert subject.convention.names == ("sequence",)
    assert Recommender.calls < 1000


def test_a_table_is_copied_once_and_restored_when_a_call_writes_to_it():
    module = nn.Module()
    module.register_buffer("table", torch.zeros(3))
    with restored(module):
        pass
    with restored(module):
        module.table += 1
    assert torch.equal(module.table, torch.zeros(3))
    with restored(module):
        module.table[0] = 5
        module.other = torch.ones(1)
    assert torch.equal(module.table, torch.zeros(3))
    assert not hasattr(module, "other")
    with restored(module):
        pass
    module.table += 1  # by its owner
    with restored(module):
        module.table += 1
    assert torch.equal(module.table, torch.ones(3))


class Unpadded(Started):
    """Adds a row to the tokens, and nothing to a mask."""

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        x = torch.cat([self.start.expand(len(x), -1, -1), x], dim=1)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask[:, None], -torch.inf)
        return x + scores.softmax(-1) @ v


class Cut(Unpadded):
    """Takes no mask of all rows either."""

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask[:, : x.shape[1]]
        return super().forward(x, key_padding_mask)


@pytest.mark.parametrize(("target", "level"), [(Unpadded, "suspicious"), (Cut, "bug")])
def test_a_mask_lacks_entries_for_what_is_added_to_the_tokens(target, level):
    (finding,) = (it for it in check(target).findings if it.name == "mask-broadcast")
    assert finding.level == level
    assert finding.place is not None
    assert "torch.cat" in finding.place.source


class AlongAxis(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, dim: int = 1):
        super().__init__()
        self.qkv = nn.Conv1d(in_channels, 3 * out_channels, 1)
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=self.dim)
        return (attend(q.mT, k.mT, v.mT)).mT


def test_a_number_of_an_axis_is_no_width():
    made = instantiate(AlongAxis, {})
    assert made.qkv.in_channels > 1
    assert made.dim == 1


class Unfilled(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, dim))
        self.register_buffer("cache", torch.empty(2, dim))


def test_what_a_constructor_leaves_unfilled_is_filled_wherever_a_class_is_built():
    first, second = instantiate(Unfilled, {}), instantiate(Unfilled, {})
    assert first.weight.abs().min() > 0
    assert torch.equal(first.weight, second.weight)
    assert not first.cache.any()


class SpaceTime(nn.Module):
    """The class token sees all tokens, and the others their frame of four."""

    def __init__(self, dim: int):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor) -> Tensor:
        if (x.shape[1] - 1) % 4:
            raise ValueError("expected a class token and frames of four tokens")
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        first = attend(q[:, :1], k, v)
        own = [slice(i, i + 4) for i in range(1, x.shape[1], 4)]
        seen = [[0, *range(it.start, it.stop)] for it in own]  # and the class token
        frames = [attend(q[:, i], k[:, j], v[:, j]) for i, j in zip(own, seen, strict=True)]
        return torch.cat([first, *frames], dim=1)


def test_frames_of_tokens_are_no_certain_bug():
    assert not check(SpaceTime).bugs


class WithClassToken(nn.Module):
    """Attends from a token for the class and the pixels of a map, of which it takes the sides, to pixels."""

    def __init__(self, dim, with_cls_token=True):
        super().__init__()
        self.with_cls_token = with_cls_token
        self.near = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x, h, w):
        token, pixels = torch.split(x, [1, h * w], 1)
        near = self.near(pixels.mT.unflatten(-1, (h, w))).flatten(2).mT
        rows = torch.cat((token, near), 1)
        query, key, value = self.query(rows), self.key(rows), self.value(rows)
        return nn.functional.scaled_dot_product_attention(query, key, value)


def test_the_sides_of_a_map_leave_out_the_token_for_the_class():
    subject = find_subject(WithClassToken)
    given = subject.arguments(subject.draw(3, 7))
    assert (given["x"].shape[1], given["h"] * given["w"]) == (7, 6)


class OfFrames(nn.Module):
    """Attends among the patches of each frame of a video, of which it takes the number of frames and of patches."""

    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x, T, N):
        B, _, C = x.shape
        q, k, v = self.qkv(x.reshape(B * T, N, C)).chunk(3, dim=-1)
        return attend(q, k, v).view(B, T * N, C)


def test_arguments_whose_product_is_a_size_of_a_view_are_the_sides_of_a_grid():
    subject = find_subject(OfFrames)
    given = subject.arguments(subject.draw(3, 8))
    assert given["T"] * given["N"] == given["x"].shape[1] == 8
