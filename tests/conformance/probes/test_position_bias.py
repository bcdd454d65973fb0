"""Biases of positions, lengths of keys and half precision: what happens to scores beside the scale and the mask."""

import pytest
import torch
from attentions_with_caches import written

from heedful import check

pytestmark = pytest.mark.slow

# A window of 2 × 3 pixels, whose table of biases is read by an index from a function.
WINDOW = """import torch
from torch import nn


def pair_index(rows, columns):
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    dy = y.flatten()[:, None] - y.flatten() + rows - 1
    dx = x.flatten()[:, None] - x.flatten() + columns - 1
    return dy * (2 * columns - 1) + dx


class Attention(nn.Module):
    def __init__(self, width=16, heads=2, rows=2, columns=3):
        super().__init__()
        self.heads = heads
        self.table = nn.Parameter(torch.randn((2 * rows - 1) * (2 * columns - 1), heads))
        self.register_buffer("pairs", pair_index(rows, columns))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, pixels):
        B, N, C = pixels.shape
        q, k, v = self.qkv(pixels).reshape(B, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        bias = self.table[self.pairs].permute(2, 0, 1)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5 + bias
        return self.out(torch.einsum("bhij,bhjd->bihd", scores.softmax(-1), v).flatten(2))
"""
SLOPES = """import torch
from torch import nn


class Attention(nn.Module):
    '''Causal attention with ALiBi instead of positions.'''

    def __init__(self, width=24, heads=4, longest=70):
        super().__init__()
        self.heads = heads
        places = torch.arange(longest)
        slopes = 2.0 ** (-8 / heads * torch.arange(1, heads + 1))
        self.register_buffer("bias", -slopes[:, None, None] * (places[:, None] - places).abs())
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        T = x.shape[1]
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.mT / q.shape[-1] ** 0.5 + self.bias[:, :T, :T]
        hidden = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
COSINES = """import torch
from torch import nn


class Attention(nn.Module):
    '''Compares tokens by cosines, divided by a learned temperature.'''

    def __init__(self, width=24, heads=4):
        super().__init__()
        self.heads = heads
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.bias = nn.Parameter(torch.randn(heads, 1, 1))
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        lengths = q.norm(dim=-1)[..., None] * k.norm(dim=-1)[..., None, :]
        scores = (q @ k.mT).div(lengths) / self.temperature.abs().clamp(max=0.01) + self.bias
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
INDEX, BIAS = "dy * (2 * columns - 1) + dx", "-slopes[:, None, None]"
LENGTHS = "k.norm(dim=-1)[..., None, :]"
WRONG = [
    (WINDOW, INDEX, "dy * (2 * rows - 1) + dx", "weights-wrong", "register_buffer('pairs'"),
    (SLOPES, BIAS, "slopes[:, None, None]", "weights-wrong", "register_buffer('bias'"),
    (SLOPES, "arange(1, heads + 1)", "arange(heads)", "weights-wrong", "register_buffer('bias'"),
    (COSINES, LENGTHS, "k.norm(dim=-1)[..., None]", "weights-wrong", "lengths ="),
    (COSINES, "q @ k.mT", "q.bfloat16() @ k.bfloat16().mT", "weights-wrong", "bfloat16"),
]


def bugs_of(folder, source, **options):
    with written(folder, source) as attention:
        bugs = check(attention, **options).bugs
    return {bug.name: bug.place.source if bug.place else "" for bug in bugs}


def options_of(source):
    return {"example": torch.randn(2, 6, 16)} if source is WINDOW else {}


@pytest.mark.parametrize(("source", "old", "new", "name", "line"), WRONG)
def test_a_wrong_bias_or_length_is_named(tmp_path, source, old, new, name, line):
    assert source.count(old) == 1
    bugs = bugs_of(tmp_path, source.replace(old, new), **options_of(source))
    assert line in bugs[name]


@pytest.mark.parametrize("source", [WINDOW, SLOPES, COSINES])
def test_right_biases_and_sharp_cosines_are_left_alone(tmp_path, source):
    assert bugs_of(tmp_path, source, **options_of(source)) == {}


def test_growing_biases_that_no_word_announces_are_a_suspicion(tmp_path):
    source = SLOPES.replace(BIAS, BIAS.removeprefix("-")).replace(" with ALiBi", "")
    with written(tmp_path, source) as attention:
        report = check(attention)
    assert not report.bugs
    assert "weights-wrong" in {finding.name for finding in report.findings}


def test_a_reward_of_far_keys_is_reported_beside_rows_without_keys(tmp_path):
    source = SLOPES.replace("-slopes[:, None", "slopes[:, None")
    source = source.replace("def forward(self, x):", "def forward(self, x, attention_mask=None):")
    source = source.replace(
        "        return self.out",
        "        if attention_mask is not None:\n"
        "            hidden = attention_mask[:, None, None] == 0\n"
        "            scores = scores.masked_fill(hidden, -torch.inf)\n"
        "        return self.out",
    )
    with written(tmp_path, source) as target:
        found = {it.name for it in check(target).findings}
    assert {"weights-wrong", "nan-on-masked-rows"} <= found
