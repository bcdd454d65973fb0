"""The line to edit is often an earlier one than the line that shows it."""

import pytest
import torch
from attentions_with_caches import written

from heedful import check

pytestmark = pytest.mark.slow

UNEQUAL = """import torch
from torch import nn


def with_copies(t, n):
    '''t: (batch, heads, tokens, features)'''
    batch, heads, tokens, features = t.shape
    return t[:, :, None].expand(-1, -1, n, -1, -1).reshape(batch, heads * n, tokens, features)


class Attention(nn.Module):
    def __init__(self, width=24, heads=4, groups=2):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.k, self.v = (nn.Linear(width, groups * self.size) for _ in range(2))

    def forward(self, x):
        B, T, _ = x.shape
        q = self.q(x).view(B, T, self.heads, self.size).transpose(1, 2)
        k = self.k(x).view(B, T, self.groups, self.size)
        v = self.v(x).view(B, T, self.groups, self.size)
        k, n = k.transpose(1, 2), self.heads // self.groups
        keys = with_copies(k, n)
        values = with_copies(v.transpose(1, 2), n)
        scores = q @ keys.mT / self.size**0.5
        return self.out((scores.softmax(-1) @ values).transpose(1, 2).flatten(2))
"""
PIXELS = """import torch
from torch import nn


class Attention(nn.Module):
    '''pixels: (batch, channels, height, width)'''

    def __init__(self, channels=8):
        super().__init__()
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)

    def forward(self, pixels):
        n, c, h, w = pixels.size()
        q, k, v = self.qkv(pixels).flatten(2).chunk(3, 1)
        weights = (q.mT @ k / c**0.5).softmax(-1)
        return pixels + (v @ weights.mT).view(n, c, h, w)
"""
BACKWARD = """import torch
from torch import nn


class Weigh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, values):
        weights = scores.softmax(-1)
        ctx.save_for_backward(weights, values)
        return weights @ values

    @staticmethod
    def backward(ctx, above):
        weights, values = ctx.saved_tensors
        below_values = weights.mT @ above
        below_weights = above @ values.mT
        inner = (below_weights * weights).sum(-1, keepdim=True)
        below_scores = weights * (below_weights - inner)
        return below_scores, below_values


class Attention(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return Weigh.apply(q @ k.mT / q.shape[-1] ** 0.5, v)
"""
STACKED = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, vocabulary=20, width=16):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids):
        '''ids: (batch, words)'''
        return self.layers(self.embed(ids))
"""
UNMASKED = """import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width=24, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, padding_mask=None):
        '''padding_mask: True at padding, (batch, tokens)'''
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = None if padding_mask is None else ~padding_mask[:, None, None]
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        context = self.out(context.transpose(1, 2).flatten(2))
        if padding_mask is not None:
            context = context * (~padding_mask[..., None]).to(context)
        return context
"""
FUSED = """import torch
import torch.nn.functional as F
from torch import nn


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class Attention(nn.Module):
    def __init__(self, width=32, heads=4, kv_heads=2):
        super().__init__()
        self.size = width // heads
        self.sizes = [width, kv_heads * self.size, kv_heads * self.size]
        self.qkv, self.out = nn.Linear(width, sum(self.sizes)), nn.Linear(width, width)
        self.norms = nn.ModuleList([Norm(self.sizes[0]), Norm(self.sizes[1])])

    def forward(self, x):
        q, k, v = self.qkv(x).split(self.sizes, -1)
        q, k = self.norms[0](q), self.norms[1](k)
        q, k, v = (it.unflatten(-1, (-1, self.size)).transpose(1, 2) for it in (q, k, v))
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(context.transpose(1, 2).flatten(2))
"""
TWO_VIEWS = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.gate, self.out = nn.Linear(2 * width, 1), nn.Linear(width, width)

    def forward(self, x, earlier):
        count, tokens, width = x.shape
        views = torch.stack([earlier, x], 1).reshape(2 * count, tokens, width)
        both = torch.cat([views[0::2], x], -1)
        weights = self.gate(both).softmax(1)
        return x + self.out(weights * x)
"""
EXAMPLES = {
    PIXELS: lambda: torch.randn(2, 8, 4, 6),
    STACKED: lambda: torch.randint(20, (3, 6)),
    TWO_VIEWS: lambda: (torch.randn(2, 6, 16), torch.randn(2, 6, 16)),
}
WRONG = [
    (FUSED, "split(self.sizes, -1)", "chunk(3, -1)", "crashes", "q, k, v = self.qkv"),
    (TWO_VIEWS, "views[0::2]", "views[:count]", "batch-mixed", "both ="),
    (
        UNEQUAL,
        "with_copies(k, n)",
        "with_copies(k.transpose(1, 2), n).transpose(1, 2)",
        "crashes",
        "keys =",
    ),
    (PIXELS, "n, c, h, w = ", "n, c, w, h = ", "crashes", "pixels.size()"),
    (BACKWARD, "above @ values.mT", "above @ values.mT * 2", "gradient-wrong", "values.mT * 2"),
    (BACKWARD, " * weights).sum", ").sum", "gradient-wrong", "inner ="),
    (STACKED, ", batch_first=True", "", "batch-mixed", "layer ="),
    (UNMASKED, ", attn_mask=seen", "", "padding-leak", "scaled_dot_product"),
]


@pytest.mark.parametrize(("source", "old", "new", "name", "line"), WRONG)
def test_the_line_to_edit_is_named(tmp_path, source, old, new, name, line):
    assert source.count(old) == 1
    example = EXAMPLES.get(source, lambda: None)()
    with written(tmp_path, source.replace(old, new)) as attention:
        bugs = {bug.name: bug.place for bug in check(attention, example=example).bugs}
    place = bugs[name]
    assert place is not None
    assert line in place.source


@pytest.mark.parametrize("source", dict.fromkeys(source for source, *_ in WRONG))
def test_the_right_versions_are_left_alone(tmp_path, source):
    example = EXAMPLES.get(source, lambda: None)()
    with written(tmp_path, source) as attention:
        assert not check(attention, example=example).bugs
