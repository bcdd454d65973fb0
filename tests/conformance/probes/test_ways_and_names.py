"""Two ways to one attention, weights on demand, masks of callers, half precision, tables of sines, and names."""

from __future__ import annotations

import pytest
from attentions_with_caches import written

from heedful import check
from heedful.conformance.calling.loading import loaded

pytestmark = pytest.mark.slow

HEAD = """import math
import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, num_heads=4, flash=False):
        super().__init__()
        self.num_heads, self.head_dim, self.flash = num_heads, dim // num_heads, flash
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def heads(self, x):
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def merge(self, x):
        return self.out(x.transpose(1, 2).flatten(2))
"""
# (wrong line, right line, the code around, the name of the finding)
FLASH = """
    def forward(self, query, key, value, causal=True):
        q, k, v = self.heads(self.q(query)), self.heads(self.k(key)), self.heads(self.v(value))
        Tq, Tk = q.shape[-2], k.shape[-2]
        later = torch.ones(Tq, Tk, dtype=torch.bool).triu(Tk - Tq + 1)
        if self.flash:
            LINE
        else:
            scores = q @ k.mT / math.sqrt(self.head_dim)
            context = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
        return self.merge(context)
"""
DEMANDED = """
    def forward(self, x, need_weights=False):
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        if not need_weights:
            return self.merge(F.scaled_dot_product_attention(q, k, v)), None
        weights = LINE
        return self.merge(weights @ v), weights
"""
RETURNED = """
    def forward(self, x):
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        weights = q @ k.mT / math.sqrt(self.head_dim)
        LINE
        return self.merge(probabilities @ v), weights
"""
CALLERS = """
    def forward(self, x, mask=None):
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        scores = q @ k.mT / math.sqrt(self.head_dim)
        if mask is not None:  # (B, T), True at padding
            LINE
            scores = scores.masked_fill(~shown[:, None, None], -1e30)
        return self.merge(scores.softmax(-1) @ v)
"""
HALF = """
    def forward(self, x):
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        scores = q @ k.mT / math.sqrt(self.head_dim)
        weights = torch.softmax(scores, -1, dtype=torch.float32)
        return self.merge(LINE)
"""
MISSPELT = """
    def forward(self, x):
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        scores = q @ k.mT / math.sqrt(self.head_dim)
        if x.shape[1] > 5000:
            LINE
        return self.merge(scores.softmax(-1) @ v)
"""
HELPED = """
    def forward(self, x):
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        return self.merge(attend(q, k, v))


def attend(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if scores.shape[-1] > 5000:
        LINE
    return scores.softmax(-1) @ v
"""
POSITIONS = """
    def forward(self, x):
        table = self.pe[: x.shape[1]]
        return self.attend(x + table)

    def attend(self, x):
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        return self.merge(F.scaled_dot_product_attention(q, k, v))


class Positional(Attention):
    def __init__(self, d_model=24, max_len=50):
        super().__init__(d_model)
        pe = torch.zeros(max_len, d_model)
        for pos in range(max_len):
            for i in range(0, d_model, 2):
                sine = pos / 10000 ** (i / d_model)
                LINE
                pe[pos, i], pe[pos, i + 1] = math.sin(sine), math.cos(cosine)
        self.register_buffer("pe", pe)
"""
BRANCHES = """
    def forward(self, x):
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        x = self.inner(x) if self.linear else self.inner(x.mT).mT
        x = self.outer(x) if self.linear else self.outer(x.mT).mT
        return self.merge(F.scaled_dot_product_attention(q, k, v)) + x


class Block(Attention):
    def __init__(self, dim=24, linear=False):
        super().__init__(dim)
        self.linear, hidden = linear, dim
        if linear:
            self.inner = nn.Linear(dim, hidden)
            LINE
        else:
            self.inner = nn.Conv1d(dim, hidden, 1)
            self.outer = nn.Conv1d(hidden, dim, 1)
"""
DISTANCES = """
    def forward(self, x, rel_pos=None):
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        scores = q @ k.mT / math.sqrt(self.head_dim)
        if rel_pos is not None:
            scores = scores + rel_pos
        return self.merge(scores.softmax(-1) @ v)


class Block(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.attention = Attention(dim)

    def forward(self, x):
        places = torch.arange(x.shape[1], dtype=x.dtype, device=x.device)
        rel_pos = -(places - places[:, None]).abs()
        LINE
"""
SWALLOWED = '''
    def forward(self, query, attn_mask=None, **kwargs):
        """
        Args:
            query (Tensor): (B, T, C).
            attn_mask (Tensor): (T, T), True where a key is hidden.
            group_mask (Tensor): (T, T), True where a query of another group would be seen.
        """
        LINE
        scores = self.heads(self.q(query)) @ self.heads(self.k(query)).mT / math.sqrt(self.head_dim)
        if hidden is not None:
            scores = scores.masked_fill(hidden, -1e30)
        return self.merge(scores.softmax(-1) @ self.heads(self.v(query)))
'''
ROUNDED = """
    def forward(self, x):
        width = x.shape[-1]
        places = torch.arange(x.shape[1], device=x.device)[:, None].float()
        pairs = torch.arange(width // 2, device=x.device).float()
        LINE
        angles = places * step
        x = x + torch.cat([angles.sin(), angles.cos()], -1).to(x.dtype)
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        return self.merge(F.scaled_dot_product_attention(q, k, v))
"""
CANCELLED = """
    def forward(self, x):
        LINE
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        scores = q @ k.mT / math.sqrt(self.head_dim)
        scores = scores.masked_fill(real[:, None, None] == 0, -1e30)
        return self.merge(scores.softmax(-1) @ v)
"""
CASES = {
    "two ways": (
        "context = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        "context = F.scaled_dot_product_attention(q, k, v, attn_mask=~later)",
        FLASH,
        "causal-alignment",
    ),
    "another scale on demand": (
        "(q @ k.mT).softmax(-1)",
        "(q @ k.mT / math.sqrt(self.head_dim)).softmax(-1)",
        DEMANDED,
        "weights-wrong",
    ),
    "scores are returned": (
        "probabilities = weights.softmax(-1)",
        "probabilities = weights = weights.softmax(-1)",
        RETURNED,
        "weights-wrong",
    ),
    "a mask is changed": ("shown = mask.logical_not_()", "shown = ~mask", CALLERS, "stale-state"),
    "half precision": ("weights @ v", "weights.to(v.dtype) @ v", HALF, "crashes"),
    "no such method": (
        "scores = scores.transpse(-1, -2).mT",
        "scores = scores.transpose(-1, -2).mT",
        MISSPELT,
        "undefined-or-global-name",
    ),
    "no such attribute": (
        "scores = scores * self.temperature",
        "scores = scores * self.head_dim",
        MISSPELT,
        "undefined-or-global-name",
    ),
    "no value yet": (
        "factor = factor * self.head_dim",
        "factor = x.shape[1] * self.head_dim",
        MISSPELT,
        "undefined-or-global-name",
    ),
    "not imported": (
        "scores = pad(scores, (0, 1))",
        "scores = F.pad(scores, (0, 1))",
        HELPED,
        "undefined-or-global-name",
    ),
    "two frequencies": (
        "cosine = pos / 10000 ** ((i + 1) / d_model)",
        "cosine = pos / 10000 ** (i / d_model)",
        POSITIONS,
        "positions-wrong",
    ),
    "swapped widths": (
        "self.outer = nn.Linear(dim, hidden)",
        "self.outer = nn.Linear(hidden, dim)",
        BRANCHES,
        "crashes",
    ),
    "distances for nobody": (
        "return self.attention(x)",
        "return self.attention(x, rel_pos)",
        DISTANCES,
        "positions-wrong",
    ),
    "a mask by keyword": (
        "hidden = attn_mask",
        'hidden = kwargs.get("group_mask", attn_mask)',
        SWALLOWED,
        "mask-unused",
    ),
    "a rounded quotient": (
        "step = torch.exp(pairs * (-math.log(10000.0) / width // 2))",
        "step = torch.exp(pairs * (-math.log(10000.0) / (width // 2)))",
        ROUNDED,
        "positions-wrong",
    ),
    "a sum of entries": (
        "real = torch.sign(torch.abs(x.sum(-1)))",
        "real = torch.sign(x.abs().sum(-1))",
        CANCELLED,
        "mask-inverted",
    ),
}
UNPLACED = ("another scale on demand", "scores are returned", "half precision", "a mask by keyword")
"""Cases whose line is not one that differs: the line that returns, for example."""


def entry(code: str) -> str:
    """Return the last class of a file."""
    return code.rpartition("class ")[2].partition("(")[0]


@pytest.mark.parametrize("case", CASES)
def test_the_bug_is_named_on_its_line_and_the_right_code_is_silent(case, tmp_path):
    wrong, right, around, name = CASES[case]
    for line, expected in ((wrong, [name]), (right, [])):
        code = HEAD + around.replace("LINE", line)
        path = tmp_path / ("wrong.py" if expected else "right.py")
        path.write_text(code)
        with loaded(f"{path}:{entry(code)}") as target:
            report = check(target)
        found = [it for it in report.bugs if it.name == name]
        assert [it.name for it in found][:1] == expected, [str(it) for it in report.findings]
        if expected and case not in UNPLACED:
            assert line in found[0].place.source
        if not expected:
            assert not report.bugs


FRAMEWORK = """from torch import nn


class Layer(nn.Module):
    def __call__(self, *args):
        if len(args) > 9:
            return self._checkpointed(super().__call__, *args)
        return super().__call__(*args)
"""
OF_FRAMEWORK = """from framework_of_layers import Layer
from torch import nn
from torch.nn import functional as F


class Attention(Layer):
    def __init__(self, dim=24):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        return F.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1))
"""


def test_attributes_that_a_framework_gives_from_outside_are_not_missing(tmp_path, monkeypatch):
    (tmp_path / "framework_of_layers.py").write_text(FRAMEWORK)
    monkeypatch.syspath_prepend(tmp_path)
    own = FRAMEWORK + OF_FRAMEWORK.partition("\n")[2]
    for code, expected in ((OF_FRAMEWORK, []), (own, ["undefined-or-global-name"])):
        with written(tmp_path, code) as target:
            assert [it.name for it in check(target).bugs] == expected
