"""Attention within groups of tokens: a view must not spread the features of one token over several rows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from heedful import check

pytestmark = pytest.mark.slow


class Columns(nn.Module):
    """The pixels of each column of a feature map attend to one another."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Conv2d(channels, channels, 1) for _ in range(3))

    def grouped(self, t):
        B, C, H, W = t.shape
        return t.permute(0, 3, 2, 1).reshape(B * W, H, C)

    def forward(self, x):
        """x: (B, C, H, W)"""
        B, C, H, W = x.shape
        q, k, v = (self.grouped(project(x)) for project in (self.to_q, self.to_k, self.to_v))
        weights = (q @ k.mT / C**0.5).softmax(dim=-1)
        return (weights @ v).reshape(B, W, H, C).permute(0, 3, 2, 1)


class ColumnsTorn(Columns):
    def grouped(self, t):
        B, C, H, W = t.shape
        return t.reshape(B * W, H, C)


class Rows(nn.Module):
    """The pixels of each row of an image attend to one another."""

    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def grouped(self, t):
        return t.flatten(0, 1)

    def forward(self, x):
        """x: (batch, height, width, dim)"""
        q, k, v = (self.grouped(t) for t in self.qkv(x).chunk(3, dim=-1))
        scores = torch.einsum("nid, njd -> nij", q, k) / q.shape[-1] ** 0.5
        return self.proj(torch.einsum("nij, njd -> nid", scores.softmax(-1), v).reshape(x.shape))


class RowsTorn(Rows):
    def grouped(self, t):
        B, H, W, C = t.shape
        return t.permute(0, 3, 1, 2).reshape(B * H, W, C)


MAP = (torch.randn(2, 8, 3, 4),)
IMAGE = (torch.randn(2, 3, 4, 8),)


@pytest.mark.parametrize(("target", "example"), [(ColumnsTorn, MAP), (RowsTorn, IMAGE)])
def test_a_view_that_spreads_the_features_of_a_token_is_found(target, example):
    (bug,) = (it for it in check(target, example=example).bugs if it.name == "heads-mixed-split")
    assert bug.place is not None
    assert "return t." in bug.place.source


@pytest.mark.parametrize(("target", "example"), [(Columns, MAP), (Rows, IMAGE)])
def test_groups_of_whole_tokens_are_right(target, example):
    assert not check(target, example=example).bugs


class Frames(nn.Module):
    """The pixels of each frame of a video attend to one another, after a norm over all of them."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, channels)
        self.qkv, self.out = nn.Conv3d(channels, 3 * channels, 1), nn.Conv3d(channels, channels, 1)

    def folded(self, t):
        return t.transpose(1, 2).flatten(0, 1)

    def forward(self, x):
        """x: (B, C, T, H, W)"""
        q, k, v = (self.folded(t).flatten(2) for t in self.qkv(self.norm(x)).chunk(3, dim=1))
        scores = torch.einsum("nci, ncj -> nij", q, k) / q.shape[1] ** 0.5
        h = torch.einsum("nij, ncj -> nci", scores.softmax(dim=-1), v)
        return x + self.out(h.unflatten(0, (x.shape[0], -1)).transpose(1, 2).reshape(x.shape))


class FramesTorn(Frames):
    def folded(self, t):
        B, C, T, H, W = t.shape
        return t.view(B * T, C, H, W)


VIDEO = (torch.randn(2, 8, 4, 2, 3),)


def test_frames_are_folded_into_the_batch_before_channels(tmp_path):
    bugs = check(FramesTorn, example=VIDEO).bugs
    assert "heads-mixed-split" in [it.name for it in bugs]
    assert not check(Frames, example=VIDEO).bugs


class Packed(nn.Module):
    """Compares pairs of tokens, each with all its features, which is a design."""

    def __init__(self, d_model: int = 8) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.reshape(B, T // 2, 2 * C) for t in self.qkv(x).chunk(3, dim=-1))
        weights = (q @ k.mT / (2 * C) ** 0.5).softmax(dim=-1)
        return self.out((weights @ v).reshape(B, T, C))


def test_whole_tokens_side_by_side_are_not_torn():
    bugs = check(Packed, example=(torch.randn(2, 6, 8),)).bugs
    assert "heads-mixed-split" not in [it.name for it in bugs]


class Map(nn.Module):
    """Every pixel of a feature map attends to every other one."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.ask, self.key, self.tell = (nn.Conv2d(channels, channels, 1) for _ in range(3))

    def pixels(self, t):
        return t.reshape(len(t), t.shape[1], -1)

    def forward(self, x):
        """x: (B, C, H, W)"""
        q, k, v = (self.pixels(project(x)) for project in (self.ask, self.key, self.tell))
        weights = (q.mT @ k / q.shape[1] ** 0.5).softmax(dim=-1)
        return x + (v @ weights.mT).reshape(x.shape)


class MapTorn(Map):
    def pixels(self, t):
        return t.reshape(len(t), 2 * t.shape[1], -1)


def test_a_view_that_joins_far_pixels_is_found():
    image = torch.randn(2, 8, 4, 4)
    assert not check(Map, example=image).bugs
    (bug,) = check(MapTorn, example=image).bugs
    assert bug.name == "heads-mixed-split"
    assert bug.place is not None
    assert "2 * t.shape[1]" in bug.place.source
