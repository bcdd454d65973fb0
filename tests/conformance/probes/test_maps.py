"""Attention along one axis of an image, within windows of it, and between two images."""

import pytest
import torch
from attentions_with_caches import written

from heedful import check

pytestmark = pytest.mark.slow

COLUMNS = """import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    '''The pixels of each column of an image attend to each other.'''

    def __init__(self, channels=16):
        super().__init__()
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, img):
        B, H, W, C = img.shape
        q, k, v = self.qkv(img).chunk(3, -1)
        q, k, v = (t.transpose(1, 2).reshape(B * W, H, C) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v)
        y = y.reshape(B, W, H, C).transpose(1, 2)
        return self.out(y)
"""
WINDOWS = """import torch
from torch import nn


class Attention(nn.Module):
    '''Attention within windows of 2 x 2 pixels.'''

    def __init__(self, channels=24, window_size=2):
        super().__init__()
        self.window_size = window_size
        self.to_qkv = nn.Linear(channels, 3 * channels)
        self.to_out = nn.Linear(channels, channels)

    def forward(self, x):
        b, c, height, width = x.shape
        s = self.window_size
        t = x.movedim(1, -1).reshape(b, height // s, s, width // s, s, c)
        t = t.transpose(2, 3).reshape(-1, s * s, c)
        q, k, v = self.to_qkv(t).chunk(3, dim=-1)
        t = self.to_out((q @ k.mT * c**-0.5).softmax(-1) @ v)
        t = t.reshape(b, height // s, width // s, s, s, c).transpose(2, 3)
        return t.reshape(b, height, width, c).movedim(-1, 1)
"""
WARP = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, channels=16, key_channels=8):
        super().__init__()
        self.to_query = nn.Conv2d(channels, key_channels, 1)
        self.to_key = nn.Conv2d(channels, key_channels, 1)

    def forward(self, target, reference, colors):
        '''target, reference: (n, channels, h, w). colors: those of the reference, (n, 3, h, w).'''
        n, c, h, w = colors.shape
        q, k = self.to_query(target).flatten(2).mT, self.to_key(reference).flatten(2)
        attn = torch.softmax(q @ k * k.shape[1] ** -0.5, dim=-1)
        return torch.einsum('nij,ncj->nci', attn, colors.flatten(2)).view(n, c, h, w)
"""


def found(tmp_path, source, example, **options):
    with written(tmp_path, source) as target:
        report = check(target, example=example, **options)
    return [(bug.name, bug.place.source if bug.place else "") for bug in report.bugs]


@pytest.mark.parametrize(
    ("source", "sizes", "names", "edits"),
    [
        (
            COLUMNS,
            [(2, 4, 4, 16)],
            ("heads-mixed-split", "context-wrong"),
            {
                "transpose(1, 2).reshape(B * W, H, C)": "reshape(B * W, H, C)",
                "y.reshape(B, W, H, C).transpose(1, 2)": "y.reshape(B, H, W, C)",
            },
        ),
        (
            WINDOWS,
            [(2, 24, 4, 4)],
            ("context-wrong",),
            {"t.transpose(2, 3).reshape(-1": "t.reshape(-1", "s, s, c).transpose(2, 3)": "s, s, c)"},
        ),
        (WARP, [(2, 16, 4, 4), (2, 16, 4, 4), (2, 3, 4, 4)], ("softmax-wrong-dim",), {"dim=-1)": "dim=1)"}),
    ],
)  # fmt: skip
def test_the_axes_of_an_image(tmp_path, source, sizes, names, edits):
    example = tuple(map(torch.randn, sizes))
    assert found(tmp_path, source, example) == []
    for old, new in edits.items():
        assert source.count(old) == 1
        source = source.replace(old, new)
    ((name, line),) = found(tmp_path, source, example)
    assert name in names
    assert next(iter(edits.values())) in line


PROJECTED = """import torch
from torch import nn


class Attention(nn.Module):
    '''Attention over the pixels of a feature map, (B, C, H, W).'''

    def __init__(self, channels=16):
        super().__init__()
        self.q, self.k, self.v, self.proj = (nn.Linear(channels, channels) for _ in range(4))

    def forward(self, x):
        B, C, H, W = x.shape
        h = x.reshape(B, C, H * W).transpose(1, 2)
        weights = (self.q(h) @ self.k(h).transpose(1, 2) / C ** 0.5).softmax(-1)
        out = self.proj(weights @ self.v(h))
        out = out.transpose(1, 2).reshape(B, C, H, W)
        return x + out
"""


@pytest.mark.parametrize("wrong", [False, True])
def test_the_projected_tokens_of_a_map_stay_in_their_rows(tmp_path, wrong):
    source = PROJECTED.replace("out.transpose(1, 2).reshape", "out.reshape") if wrong else PROJECTED
    bugs = [("heads-mixed-merge", "out = out.reshape(B, C, H, W)")] if wrong else []
    assert found(tmp_path, source, None) == bugs


POSITIONS = """import torch
from torch import nn


class Attention(nn.Module):
    '''Attention over the pixels of a feature map, (B, C, H, W), whose weights are turned for the product.'''

    def __init__(self, channels=16):
        super().__init__()
        self.q, self.k, self.v = (nn.Conv2d(channels, channels, 1) for _ in range(3))

    def forward(self, x):
        B, C, H, W = x.shape
        q = self.q(x).view(B, C, H * W).permute(0, 2, 1)
        scores = torch.bmm(q, self.k(x).view(B, C, H * W)) / C**0.5
        weights = scores.softmax(dim=-1)
        out = torch.bmm(self.v(x).view(B, C, H * W), weights.permute(0, 2, 1))
        return x + out.view(B, C, H, W)
"""


@pytest.mark.parametrize("wrong", [False, True])
def test_a_softmax_over_the_queries_before_weights_are_permuted(tmp_path, wrong):
    source = POSITIONS.replace("dim=-1", "dim=1") if wrong else POSITIONS
    bugs = [("softmax-wrong-dim", "weights = scores.softmax(dim=1)")] if wrong else []
    assert found(tmp_path, source, None) == bugs


CRISS_CROSS = """import torch
from torch import nn


class Attention(nn.Module):
    '''A voxel of a volume, (B, C, Z, Y, X), attends to those on the lines through it along Z and X.'''

    def __init__(self, channels=16):
        super().__init__()
        self.qkv = nn.Conv3d(channels, 3 * channels, 1)

    def forward(self, x):
        B, C, Z, Y, X = x.shape
        q, k, v = self.qkv(x).chunk(3, 1)
        along_z = [t.permute(0, 4, 3, 2, 1).reshape(B * X * Y, Z, C) for t in (q, k, v)]
        along_x = [t.permute(0, 2, 3, 4, 1).reshape(B * Z * Y, X, C) for t in (q, k, v)]
        scores_z = torch.bmm(along_z[0], along_z[1].mT).view(B, X, Y, Z, Z).permute(0, 3, 2, 1, 4)
        scores_x = torch.bmm(along_x[0], along_x[1].mT).view(B, Z, Y, X, X)
        weights = (torch.cat([scores_z, scores_x], -1) / C**0.5).softmax(-1)
        weights_z = weights[..., :Z].permute(0, 3, 2, 1, 4)
        weights_x = weights[..., Z:]
        out_z = torch.bmm(weights_z.reshape(B * X * Y, Z, Z), along_z[2])
        out_x = torch.bmm(weights_x.reshape(B * Z * Y, X, X), along_x[2])
        out_z = out_z.view(B, X, Y, Z, C).permute(0, 4, 3, 2, 1)
        return x + out_z + out_x.view(B, Z, Y, X, C).permute(0, 4, 1, 2, 3)
"""


@pytest.mark.parametrize(
    ("old", "new", "bugs"),
    [
        ("", "", []),
        (
            "weights[..., :Z].permute(0, 3, 2, 1, 4)",
            "weights[..., :Z].permute(0, 3, 2, 4, 1)",
            [("weights-wrong", "weights_z = weights[..., :Z].permute(0, 3, 2, 4, 1)")],
        ),
        (
            ".softmax(-1)",
            ".softmax(3)",
            [
                (
                    "softmax-wrong-dim",
                    "weights = (torch.cat([scores_z, scores_x], -1) / C**0.5).softmax(3)",
                )
            ],
        ),
    ],
)
def test_lines_of_a_volume_share_a_softmax(tmp_path, old, new, bugs):
    example = (torch.randn(2, 16, 4, 5, 3),)
    assert found(tmp_path, CRISS_CROSS.replace(old, new), example) == bugs


NEAR_AND_FAR = """import torch
from torch import nn


class Attention(nn.Module):
    '''A token attends to all tokens and, beside them in one softmax, to their sums up to each of them.'''

    def __init__(self, width=32):
        super().__init__()
        self.q, self.k, self.v, self.far = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        B, T, C = x.shape
        far = self.far(x.cumsum(1))
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = torch.cat([q @ k.mT, q @ far.mT], -1) * C**-0.5
        weights = scores.softmax(-1)
        return weights[..., :T] @ v + weights[..., T:] @ far
"""


def test_near_and_far_keys_share_a_softmax(tmp_path):
    assert found(tmp_path, NEAR_AND_FAR, None) == []
    source = NEAR_AND_FAR.replace("[..., :T] @ v", "[..., :T].mT @ v")
    ((name, line),) = found(tmp_path, source, None)
    assert (name, line) == (
        "weights-wrong",
        "return weights[..., :T].mT @ v + weights[..., T:] @ far",
    )


FRAMES = """import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    '''The patches of a frame see each other, and then those at their place in earlier frames.

    x: (batch, frames, patches, width)
    '''

    def __init__(self, width=16):
        super().__init__()
        self.within, self.between = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = self.within(x).chunk(3, -1)
        x = x + F.scaled_dot_product_attention(q, k, v)
        q, k, v = self.between(x.transpose(1, 2)).chunk(3, -1)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)
        y = scores.softmax(-1) @ v
        return x + y.transpose(1, 2)
"""


@pytest.mark.parametrize(
    ("old", "new", "bugs"),
    [
        ("", "", []),
        (
            ".masked_fill(hidden, -torch.inf)",
            "",
            [("future-leak", "y = scores.softmax(-1) @ v")],
        ),
        (
            ".triu(1)",
            ".tril(-1)",
            [
                (
                    "mask-inverted",
                    "hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(-1)",
                )
            ],
        ),
    ],
)
def test_the_patches_of_a_frame_come_together(tmp_path, old, new, bugs):
    example = (torch.randn(2, 6, 4, 16),)
    assert found(tmp_path, FRAMES.replace(old, new), example, causal=True) == bugs


def test_the_pixels_of_a_row_come_one_after_another(tmp_path):
    source = FRAMES.replace("frame", "row").replace("patches", "pixels")
    ((name, _),) = found(tmp_path, source, (torch.randn(2, 6, 4, 16),), causal=True)
    assert name == "future-leak"


NORMALIZED = """
from torch import einsum, nn
from torch.nn import functional as F

class Attention(nn.Module):
    def __init__(self, dim=24, heads=4):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Conv2d(dim, 3 * dim, 1, bias=False)
        self.to_out = nn.Conv2d(dim, dim, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = (it.reshape(b, self.heads, -1, h * w) for it in self.to_qkv(x).chunk(3, dim=1))
        q, k = (F.normalize(it, dim=-2) for it in (q, k))
        weights = (einsum("b h d i, b h d j -> b h i j", q, k) * 10).softmax(dim=-1)
        context = einsum("b h i j, b h d j -> b h d i", weights, v)
        return self.to_out(context.reshape(b, c, h, w))
"""


@pytest.mark.parametrize("wrong", [False, True])
def test_cosines_of_pixels_need_vectors_of_length_one(tmp_path, wrong):
    source = NORMALIZED.replace("dim=-2", "dim=-1") if wrong else NORMALIZED
    bugs = [("weights-wrong", "q, k = (F.normalize(it, dim=-1) for it in (q, k))")] if wrong else []
    assert found(tmp_path, source, None) == bugs
