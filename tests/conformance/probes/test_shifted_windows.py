"""Windows of images: a shift wraps around the edges, and a mask has to keep opposite edges apart."""

import pytest
import torch
from attentions_with_caches import written

from heedful import check

BLOCK = """
import torch
from torch import nn


def to_windows(t, n):
    B, H, W, C = t.shape
    t = t.reshape(B, H // n, n, W // n, n, C).transpose(2, 3)
    return t.reshape(-1, n * n, C)


def from_windows(t, n, H, W):
    t = t.reshape(-1, H // n, W // n, n, n, t.shape[-1]).transpose(2, 3)
    return t.reshape(-1, H, W, t.shape[-1])


class Local(nn.Module):
    def __init__(self, width, heads, n):
        super().__init__()
        self.heads = heads
        self.bias = nn.Parameter(torch.randn(heads, n * n, n * n))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, t, hidden=None):
        L, N, C = t.shape
        q, k, v = self.qkv(t).reshape(L, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / (C // self.heads) ** 0.5 + self.bias
        if hidden is not None:
            scores = scores.view(-1, len(hidden), self.heads, N, N) + hidden[:, None]
            scores = scores.view(L, self.heads, N, N)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(L, N, C))


class Attention(nn.Module):
    def __init__(self, width=16, heads=2, resolution=(8, 8), n=4, shift=2):
        super().__init__()
        self.resolution, self.n, self.shift = resolution, n, shift
        self.attn = Local(width, heads, n)
        H, W = resolution
        regions = torch.zeros(1, H, W, 1)
        bounds = (slice(0, -n), slice(-n, -shift), slice(-shift, None))
        for i, rows in enumerate(bounds):
            for j, columns in enumerate(bounds):
                regions[:, rows, columns] = 3 * i + j
        ids = to_windows(regions, n).squeeze(-1)
        hidden = torch.where(ids[:, None] == ids[:, :, None], 0.0, -torch.inf)
        self.register_buffer("hidden", hidden)

    def forward(self, x):
        H, W = self.resolution
        B, T, C = x.shape
        image = x.view(B, H, W, C).roll((-self.shift, -self.shift), (1, 2))
        windows = self.attn(to_windows(image, self.n), self.hidden)
        image = from_windows(windows, self.n, H, W).roll((self.shift, self.shift), (1, 2))
        return x + image.view(B, T, C)
"""
REGIONS = "regions[:, rows, columns] = 3 * i + j"


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        (REGIONS, "regions[:, rows, columns] = i", "mask-broadcast"),
        (REGIONS, "regions[:, :, columns] = j", "mask-broadcast"),
        ("self.n), self.hidden)", "self.n))", "mask-unused"),
    ],
)
def test_opposite_edges_that_see_each_other_are_found(tmp_path, old, new, name):
    with written(tmp_path, BLOCK.replace(old, new)) as target:
        (bug,) = check(target).bugs
    assert bug.name == name
    assert bug.place.source.startswith("regions[")


def test_a_shift_that_is_not_undone_is_found(tmp_path):
    wrong = BLOCK.replace("(self.shift, self.shift), (1, 2)", "(self.shift, self.n), (1, 2)")
    with written(tmp_path, wrong) as target:
        bugs = {bug.name: bug.place.source for bug in check(target).bugs}
    assert "image = x.view" in bugs["context-wrong"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (REGIONS, REGIONS),
        (REGIONS, "regions[:, rows] = i  # the longitude closes into a circle"),
        ("shift=2", "shift=0"),
        (
            'self.register_buffer("hidden", hidden)',
            "self.hidden = nn.Parameter(hidden, requires_grad=False)",
        ),
    ],
)
def test_regions_along_the_axes_that_have_edges_are_right(tmp_path, old, new):
    with written(tmp_path, BLOCK.replace(old, new)) as target:
        assert not check(target).bugs


def test_shifted_windows_of_a_feature_map_are_not_mixed_heads(tmp_path):
    channels_first = BLOCK.replace("        B, T, C = x.shape\n", "        B, C = x.shape[:2]\n")
    channels_first = channels_first.replace(
        "image = x.view(B, H, W, C).roll", "image = x.permute(0, 2, 3, 1).roll"
    ).replace("x + image.view(B, T, C)", "x + image.permute(0, 3, 1, 2)")
    with written(tmp_path, channels_first) as target:
        report = check(target, example=torch.randn(2, 16, 8, 8))
    assert not report.bugs
    assert any(fact.name == "scale" for fact in report.facts)


CUT = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width=16, heads=2, window_size=2):
        super().__init__()
        self.heads, self.window_size = heads, window_size
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def cut(self, t):
        B, C, H, W = t.shape
        n = self.window_size
        t = t.permute(0, 2, 3, 1).reshape(B, H // n, n, W // n, n, C)
        return t.transpose(2, 3).reshape(-1, n * n, self.heads, C // self.heads).transpose(1, 2)

    def forward(self, x):
        B, C, H, W = x.shape
        n = self.window_size
        q, k, v = (self.cut(it) for it in self.qkv(x).chunk(3, dim=1))
        weights = (q @ k.mT / (C // self.heads) ** 0.5).softmax(-1)
        context = (weights @ v).transpose(1, 2).reshape(B, H // n, W // n, n, n, C)
        context = context.transpose(2, 3).reshape(B, H, W, C).permute(0, 3, 1, 2)
        return self.out(context)
"""


def test_windows_that_are_cut_without_a_transposition_are_no_squares(tmp_path):
    wrong = CUT.replace("t.transpose(2, 3).reshape(-1", "t.reshape(-1")
    wrong = wrong.replace("context.transpose(2, 3).reshape(B", "context.reshape(B")
    with written(tmp_path, wrong) as target:
        (bug,) = check(target).bugs
    assert bug.name == "context-wrong"
    assert bug.place.source.startswith("return t.reshape(-1, n * n")
    with written(tmp_path, CUT) as target:
        assert not check(target).bugs


PADDED = (
    BLOCK[: BLOCK.index("class Attention")]
    + """
class Attention(nn.Module):
    def __init__(self, width=16, heads=2, n=4, shift=2):
        super().__init__()
        self.n, self.shift = n, shift
        self.attn = Local(width, heads, n)

    def hidden(self, real):
        regions = torch.zeros(real.shape)
        bounds = (slice(0, -self.n), slice(-self.n, -self.shift), slice(-self.shift, None))
        for i, rows in enumerate(bounds):
            for j, columns in enumerate(bounds):
                regions[:, rows, columns] = 3 * i + j
        ids = to_windows(torch.where(real, regions, -1.0), self.n).squeeze(-1)
        return torch.where(ids[:, None] == ids[:, :, None], 0.0, -torch.inf)

    def shifted(self, t, by):
        return t.roll((by, by), (1, 2))

    def forward(self, image):
        B, H, W, C = image.shape
        more = (0, 0, 0, -W % self.n, 0, -H % self.n)
        real = torch.ones(1, H, W, 1, dtype=torch.bool)
        real = self.shifted(nn.functional.pad(real, more), -self.shift)
        y = nn.functional.pad(image, more)
        y = self.shifted(y, -self.shift)
        windows = self.attn(to_windows(y, self.n), self.hidden(real))
        y = self.shifted(from_windows(windows, self.n, *y.shape[1:3]), self.shift)[:, :H, :W]
        return image + y
"""
)


def test_an_image_is_padded_before_it_is_shifted(tmp_path):
    example = (torch.randn(2, 7, 7, 16),)
    with written(tmp_path, PADDED) as target:
        assert not check(target, example=example).bugs
    wrong = PADDED
    for old, new in {
        "self.shifted(nn.functional.pad(real, more), -self.shift)": (
            "nn.functional.pad(self.shifted(real, -self.shift), more)"
        ),
        "y = nn.functional.pad(image, more)": "y = self.shifted(image, -self.shift)",
        "y = self.shifted(y, -self.shift)": "y = nn.functional.pad(y, more)",
        "self.shifted(from_windows(windows, self.n, *y.shape[1:3]), self.shift)[:, :H, :W]": (
            "self.shifted(from_windows(windows, self.n, *y.shape[1:3])[:, :H, :W], self.shift)"
        ),
    }.items():
        assert old in wrong
        wrong = wrong.replace(old, new)
    with written(tmp_path, wrong) as target:
        (bug,) = check(target, example=example).bugs
    assert (bug.name, bug.place.source) == ("weights-wrong", "y = nn.functional.pad(y, more)")


WIDE = (
    BLOCK[: BLOCK.index("class Attention")]
    + """
class Attention(nn.Module):
    def __init__(self, width=16, heads=2, window_size=4):
        super().__init__()
        self.window_size = window_size
        self.attn = Local(width, heads, window_size)
        self.along = nn.Conv2d(width, width, (1, 9), padding=(0, 4))

    def forward(self, image):
        B, H, W, C = image.shape
        n = self.window_size
        more = (0, 0, 0, -W % n, 0, -H % n)
        real = nn.functional.pad(torch.ones(1, H, W, 1), more)
        hidden = (to_windows(real, n).mT == 0).float() * torch.finfo(torch.float32).min
        padded = nn.functional.pad(image, more)
        windows = self.attn(to_windows(padded, n), hidden)
        rows = from_windows(windows, n, *padded.shape[1:3])[:, :H, :W]
        return image + self.along(rows.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
"""
)


def test_an_image_that_is_lower_than_a_window_tells_no_squares(tmp_path):
    with written(tmp_path, WIDE) as target:
        assert not check(target, example=(torch.randn(2, 6, 8, 16),)).bugs
