"""Rotary positions: queries and keys must be rotated alike, by exact angles."""

from __future__ import annotations

import pytest
import torch
from attentions_with_caches import (
    ANGLES,
    GROWING,
    PARTNER,
    POSITIONS,
    ROTATE_KEY,
    SINES,
    STACKED,
    assert_names_the_line,
    assert_no_finding,
    findings,
    written,
)

from heedful.conformance import check

# The cosines and sines are the columns of one table, in another layout than the rotation's.
TABLE = GROWING.replace(
    "    cos = torch.cat([angles.cos(), angles.cos()], dim=-1).to(x.dtype)\n",
    "    table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).to(x.dtype)\n"
    "    cos = table[..., 1::2].repeat(1, 1, 1, 2)\n",
).replace(
    "torch.cat([angles.sin(), angles.sin()], dim=-1).to(x.dtype)",
    "table[..., 0::2].repeat(1, 1, 1, 2)",
)
COSINES = "table[..., 1::2].repeat(1, 1, 1, 2)"

# name, source, the text that is replaced, its replacement, and a part of the line to be named
WRONG = [
    ("rotary-offset", GROWING, POSITIONS, POSITIONS.replace("past:", ":T"), "[:, :T]"),
    ("rotary-offset", GROWING, POSITIONS, POSITIONS + " + (past > 0)", "+ (past > 0)"),
    (
        "rotary-offset",
        GROWING,
        ROTATE_KEY,
        ROTATE_KEY.replace("positions", "positions - past"),
        "positions - past",
    ),
    ("rotary-offset", GROWING, ROTATE_KEY, ROTATE_KEY.replace("positions", "positions + 1"), None),
    ("rotary-mismatch", GROWING, ROTATE_KEY, "", "rotate(query, positions)"),
    ("rotary-mismatch", GROWING, PARTNER, PARTNER.replace("-second", "second"), "[second, first]"),
    ("rotary-mismatch", GROWING, PARTNER, STACKED, "torch.stack"),
    ("rotary-mismatch", GROWING, SINES, "angles.sin().repeat_interleave(2, -1)", "angles.sin()"),
    ("rotary-mismatch", TABLE, COSINES, "table[..., 1::2].repeat_interleave(2, -1)", "1::2]"),
    (
        "rotary-precision",
        GROWING,
        ANGLES,
        ANGLES.replace(".double() * frequencies", ".to(x.dtype) * frequencies.to(x.dtype)"),
        "to(x.dtype) *",
    ),
    (
        "rotary-precision",
        GROWING,
        ANGLES,
        ANGLES.replace("frequencies", "frequencies\n    angles = angles.to(x.dtype)"),
        "angles.to(x.dtype)",
    ),
    ("length-dependent", GROWING, POSITIONS, POSITIONS.replace("_min(0)", "(0, 31)"), "(0, 31)"),
    ("length-dependent", GROWING, POSITIONS, f"{POSITIONS} % 16", "% 16"),
]
CORRECT = {
    "pairs of neighbours": (
        GROWING.replace("x.chunk(2, dim=-1)", "x[..., ::2], x[..., 1::2]")
        .replace("cat([-second, first], dim=-1)", "stack([-second, first], dim=-1).flatten(-2)")
        .replace(
            "torch.cat([angles.cos(), angles.cos()], dim=-1)",
            "angles.cos().repeat_interleave(2, -1)",
        ),
        SINES,
        "angles.sin().repeat_interleave(2, -1)",
    ),
    "columns of one table": (TABLE, "table[..., 0::2]", "table[..., ::2]"),
    "rotated in the other direction": (GROWING, "[-second, first]", "[second, -first]"),
    "half of the features rotated": (
        GROWING.replace("    D = x", "    x, rest = x.chunk(2, dim=-1)\n    D = x"),
        "return x * cos + partner * sin",
        "return torch.cat([x * cos + partner * sin, rest], dim=-1)",
    ),
}


@pytest.mark.parametrize(("name", "source", "old", "new", "line"), WRONG)
def test_the_wrong_line_is_named(tmp_path, name, source, old, new, line):
    assert_names_the_line(tmp_path, name, source, old, new, line)


@pytest.mark.parametrize("variant", CORRECT)
def test_correct_variants_give_no_finding(tmp_path, variant):
    assert_no_finding(tmp_path, *CORRECT[variant])


def test_frequencies_rounded_by_a_cast_are_suspicious(tmp_path):
    base = "10.0 ** (-torch.arange(0, 6, 2) / 6)"
    source = GROWING.replace("positions)\n", "positions, self.inv_freq)\n")
    source = source.replace("def rotate(x, positions)", "def rotate(x, positions, frequencies)")
    source = source.replace("    frequencies =", "    unused =").replace(
        "        self.out_proj =",
        f"        self.register_buffer('inv_freq', {base}, persistent=False)\n        self.out_proj =",
    )
    with written(tmp_path, source) as target:
        (finding,) = findings(target(24, 4))
    assert (finding.name, finding.level) == ("rotary-precision", "suspicious")


ALONG_AN_AXIS = """
import torch
from torch import nn


def angles_for(n, size, base=10000.0):
    rates = base ** (-torch.arange(0, size, 2) / size)
    return torch.arange(n)[:, None] * rates


def turn(t, axis=AXIS):
    angle = angles_for(t.shape[axis], t.shape[-1])
    shape = [1] * (t.dim() - 1) + [angle.shape[-1]]
    shape[axis] = t.shape[axis]
    cos, sin = angle.cos().view(shape), angle.sin().view(shape)
    even, odd = t[..., 0::2], t[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

class Attention(nn.Module):
    def __init__(self, width=24, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).reshape(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q = turn(q)
        k = turn(k)
        att = (q @ k.transpose(-2, -1) * (C // self.heads) ** -0.5).softmax(-1)
        return self.proj((att @ v).transpose(1, 2).reshape(B, T, C))
"""


@pytest.mark.parametrize(
    ("axis", "line"), [(0, "q = turn(q)"), (1, "q = turn(q)"), (-2, ""), (2, "")]
)
def test_a_rotation_along_the_heads_or_the_batch_is_found(tmp_path, axis, line):
    with written(tmp_path, ALONG_AN_AXIS.replace("AXIS", str(axis))) as target:
        bugs = check(target).bugs
    assert [bug.name for bug in bugs] == (["rotary-mismatch"] if line else [])
    assert not line or bugs[0].place.source == line


def test_queries_that_are_rotated_along_the_heads_are_found_beside_right_keys(tmp_path):
    source = ALONG_AN_AXIS.replace("AXIS", "2").replace("k = turn(k)", "k = turn(k, 1)")
    with written(tmp_path, source) as target:
        (bug,) = check(target).bugs
    assert (bug.name, bug.place.source) == ("rotary-mismatch", "k = turn(k, 1)")


# A part of each head is rotated, by a module of its own.
PART = ALONG_AN_AXIS.replace(
    "class Attention(",
    """class Turn(nn.Module):
    def forward(self, t):
        return turn(t)


class Attention(""",
).replace("self.heads = heads", "self.heads, self.turn = heads, Turn()")
PART = PART.replace("self.proj =", "self.place = nn.Linear(width, 4 * heads)\n        self.proj =")
PART = PART.replace("q = turn(q)", "p = self.turn(self.place(x).view(B, T, -1, 4).transpose(1, 2))")
PART = PART.replace("k = turn(k)", "q, k = torch.cat([q, p], -1), torch.cat([k, p], -1)")
PART = PART.replace("(C // self.heads)", "q.shape[-1]")


@pytest.mark.parametrize(("axis", "bugs"), [(1, ["rotary-mismatch"]), (2, [])])
def test_a_rotation_of_a_part_of_each_head_along_the_heads_is_found(tmp_path, axis, bugs):
    with written(tmp_path, PART.replace("AXIS", str(axis))) as target:
        found = check(target).bugs
    assert [bug.name for bug in found] == bugs
    assert not bugs or found[0].place.source.startswith("p = self.turn(")


# Angles of pairs of halves, which the module holds, and a function that turns pairs of neighbors.
HELD = """
import torch
from torch import nn

def turned(t):
    a, b = t.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((-b, a), -1).flatten(-2)

class Attention(nn.Module):
    def __init__(self, n_embd, n_head, ctx_len=32):
        super().__init__()
        self.n_head = n_head
        self.in_proj, self.proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        D = n_embd // n_head
        theta = torch.arange(ctx_len)[:, None] / 10000 ** (torch.arange(0, D, 2) / D)
        self.register_buffer("c", theta.repeat_interleave(2, dim=1).cos())
        self.register_buffer("s", theta.repeat_interleave(2, dim=1).sin())

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.in_proj(x).view(B, T, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        q = q * self.c[:T] + turned(q) * self.s[:T]
        k = k * self.c[:T] + turned(k) * self.s[:T]
        w = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return self.proj((w @ v).transpose(1, 2).reshape(B, T, C))
"""


@pytest.mark.parametrize("wrong", [False, True])
def test_a_function_that_does_not_fit_a_held_table_is_named(tmp_path, wrong):
    halves = "torch.cat((-t.chunk(2, -1)[1], t.chunk(2, -1)[0]), -1)"
    neighbors = "torch.stack((-b, a), -1).flatten(-2)"
    with written(tmp_path, HELD.replace(neighbors, halves) if wrong else HELD) as target:
        found = check(target(24, 4)).bugs
    assert [bug.name for bug in found] == ["rotary-mismatch"] * wrong
    assert all(bug.place is not None and halves in bug.place.source for bug in found)


# Tables from the caller, which may be the parts of complex numbers as well.
GIVEN = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def turn(self, x, c, s):
        a, b = x.chunk(2, dim=-1)
        return x * c + torch.cat([-b, a], dim=-1) * s

    def forward(self, x, c, s):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.turn(q, c[:T], s[:T]), self.turn(k, c[:T], s[:T])
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(B, T, C))
"""


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("real", [False, True])
def test_a_table_of_the_example_that_is_no_rotation_is_no_bug(tmp_path, real, wrong):
    angles = (torch.arange(9)[:, None] * torch.tensor([1.0, 0.1, 0.01])).repeat(1, 2)
    table = (angles.cos(), angles.sin()) if real else tuple(torch.randn(2, 9, 6))
    source = GIVEN.replace("[-b, a]", "[b, a]") if wrong else GIVEN
    with written(tmp_path, source) as target:
        report = check(target(24, 4), example=(torch.randn(2, 9, 24), *table))
    assert [bug.name for bug in report.bugs] == ["rotary-mismatch"] * (real and wrong)
    if not real:
        levels = {it.name: it.level for it in report.findings}
        assert levels["rotary-mismatch"] == "not-testable"


OF_A_GRID = """
import torch
from torch import nn

def rotate(x, places):
    half = x.shape[-1] // 2
    frequencies = 100.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = places[:, None] * frequencies
    first, second = x.split(half, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

class Attention(nn.Module):
    def __init__(self, dim=24, columns=4):
        super().__init__()
        self.num_heads, self.columns = 2, columns
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        places = torch.arange(x.shape[1])
        rows, columns = (places // self.columns).to(x.dtype), (places % self.columns).to(x.dtype)
        d = q.shape[-1] // 2
        q, k = (
            torch.cat([rotate(t[..., :d], rows), rotate(t[..., d:], columns)], dim=-1) for t in (q, k)
        )
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))
"""


def test_rows_and_columns_of_patches_are_small_enough_for_half_precision(tmp_path):
    assert_no_finding(tmp_path, OF_A_GRID, "dim=24", "dim=24")


def test_positions_of_tokens_are_not(tmp_path):
    old = "(places // self.columns).to(x.dtype)"
    assert_names_the_line(
        tmp_path, "rotary-precision", OF_A_GRID, old, "places.to(x.dtype)", "places.to"
    )


AXIAL = OF_A_GRID.replace(
    """    first, second = x.split(half, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
""",
    """    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    first, second = x.split(half, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return x * cos + turned * sin
""",
)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("angles.sin().repeat(1, 2)", "angles.sin().repeat_interleave(2, dim=1)", "angles.sin()"),
        ("torch.cat([-second, first]", "torch.cat([second, first]", "turned = "),
    ],
)
def test_the_line_is_found_where_parts_of_the_features_are_rotated_apart(tmp_path, old, new, line):
    assert_names_the_line(tmp_path, "rotary-mismatch", AXIAL, old, new, line)


STACKED = """
import torch
from torch import nn

class Turning(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("speeds", 100.0 ** -torch.linspace(0, 1, size // 2), persistent=False)

    def forward(self, heads, start):
        angles = torch.arange(start, start + heads.shape[-2])[:, None] * self.speeds
        turned = torch.polar(torch.ones_like(angles), angles) * torch.view_as_complex(heads.unflatten(-1, (-1, 2)))
        return torch.view_as_real(turned).flatten(-2)

class Layer(nn.Module):
    def __init__(self, width, again):
        super().__init__()
        self.again = again
        self.project = nn.Linear(width, 3 * width)
        self.turning = Turning(width // 4)

    def forward(self, tokens):
        count = tokens.shape[1]
        query, key, value = (it.unflatten(-1, (4, -1)).transpose(1, 2) for it in self.project(tokens).chunk(3, -1))
        key = self.turning(key, 0)
        if self.again:
            first = count - count
        else:
            first = 0 * count
        query = self.turning(query, first)
        scores = query @ key.mT / query.shape[-1] ** 0.5
        hidden = torch.ones(count, count, dtype=torch.bool).triu(1)
        context = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value
        return tokens + context.transpose(1, 2).flatten(2)

class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, again) for again in (False, True))

    def forward(self, tokens):
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens
"""


@pytest.mark.parametrize(("start", "bugs"), [("count - count", 0), ("count", 1), ("2 * count", 1)])
def test_queries_of_a_later_layer_that_begin_too_late_are_found(tmp_path, start, bugs):
    with written(tmp_path, STACKED.replace("count - count", start)) as attention:
        found = check(attention(32), causal=True).bugs
    assert [it.name for it in found] == ["rotary-offset"] * bugs
    assert all(it.place is not None and f"first = {start}" in it.place.source for it in found)
