"""Bugs that only some numbers of tokens, or of sequences, show."""

import pytest
import torch
from attentions_with_caches import written
from edited_attention import (
    APPLY_MASK,
    CONTEXT,
    SIZES,
    SOFTMAX,
    SPLIT_VALUE,
    assert_bug,
    assert_no_finding,
    edited,
    results_of,
)

from heedful import check
from heedful.conformance import Example
from heedful.conformance.calling.loading import loaded
from heedful.conformance.reporting.finding import Fact

# What is replaced, by what, and what is on the line to be named.
BUGS = {
    "32 keys": (
        CONTEXT,
        "        context = weights[..., :32] @ value[:, :, :32]\n",
        "weights[..., :32]",
    ),
    "32 weights": (
        SOFTMAX,
        SOFTMAX.replace("(scores, dim=-1)", "(scores, dim=-1)[..., :32]")
        + "        value = value[:, :, :32]\n",
        "[..., :32]",
    ),
    "values mixed up after 32": (
        SPLIT_VALUE,
        SPLIT_VALUE
        + "        value = torch.cat([value[:, :, :32], value[:, :, 32:].flip(-1)], dim=2)\n",
        "weights @ value",
    ),
    "16 tokens cut to 8": (
        CONTEXT,
        CONTEXT + "        T = 8 if T == 16 else T\n        context = context[:, :, :T]\n",
        None,
    ),
    "another scale beyond 32": (
        SOFTMAX,
        "        if T > 32:\n            scores = scores * 1.5\n" + SOFTMAX,
        "scores * 1.5",
    ),
    "no mask beyond 16": (
        APPLY_MASK,
        "        if T <= 16:\n    " + APPLY_MASK,
        "masked_fill",
    ),
    "31 tokens raise": (
        SOFTMAX,
        SOFTMAX + "        if T == 31:\n            raise IndexError(T)\n",
        "raise IndexError",
    ),
    "one sequence squeezed": (
        CONTEXT,
        CONTEXT + "        context = context.squeeze(0) if B == 1 else context\n",
        "context.squeeze",
    ),
}

CELLS = """import torch
from torch import nn


class Attention(nn.Module):
    '''Readings of one cell look at each other. `counts` says how many readings each cell has.'''

    def __init__(self, width=16):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, readings, counts):
        found, cells = [], counts.tolist()
        for cell in readings.split(cells):
            weights = (self.q(cell) @ self.k(cell).mT / readings.shape[-1] ** 0.5).softmax(-1)
            found.append(weights @ self.v(cell))
        return torch.cat(found)
"""


FUSED = """import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        query, key, value = self.q(x)[:, None], self.k(x)[:, None], self.v(x)[:, None]
        kept = max(8, x.shape[1] // 8 * 8)
        return F.scaled_dot_product_attention(query, key[:, :, :kept], value)[:, 0]
"""


# Rotates by one angle for each head, which is an angle for each token if there are as many heads.
ANGLES = """
import torch
from torch import nn
from torch.nn import functional as F

class Attention(nn.Module):
    def __init__(self, dim, heads=8):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * heads * 4), nn.Linear(heads * 4, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, 4)).unbind(2)
        angles = torch.arange(q.shape[-2], dtype=x.dtype)[:, None, None]
        q, k = (torch.cat([t * angles.cos(), t * angles.sin()], -1).transpose(1, 2) for t in (q, k))
        return self.out(F.scaled_dot_product_attention(q, k, v.transpose(1, 2)).transpose(1, 2).flatten(2))
"""


def test_as_many_tokens_as_heads_are_not_the_only_right_length(tmp_path):
    with written(tmp_path, ANGLES) as target:
        found = {it.name: it for it in check(target).bugs}
    assert "q, k = (torch.cat" in found["length-dependent"].place.source
    with written(tmp_path, ANGLES.replace("q.shape[-2]", "q.shape[1]")) as target:
        assert "length-dependent" not in {it.name for it in check(target).findings}


@pytest.mark.parametrize("bug", BUGS)
def test_dependence_on_lengths_is_found(tmp_path, bug):
    assert_bug(tmp_path, "length-dependent", *BUGS[bug])


def test_fewer_keys_than_values_of_the_fused_attention_are_found(tmp_path):
    file = tmp_path / "attention.py"
    file.write_text(FUSED)
    with loaded(f"{file}:Attention") as definition:
        (bug,) = check(definition).bugs
    assert bug.name == "length-dependent"
    assert "8 keys and 15 values" in bug.proof
    assert "scaled_dot_product_attention" in bug.place.source


def test_refusing_long_sequences_raises_no_alarm(tmp_path):
    refusal = "        if T > 50:\n            raise ValueError(T)\n"
    assert_no_finding(tmp_path, CONTEXT, CONTEXT + refusal)


def test_the_largest_context_is_found_without_a_declaration(tmp_path):
    table = "        context = context + torch.zeros(41)[:T].view(T, 1)\n"
    with edited(tmp_path, CONTEXT, CONTEXT + table) as attention:
        assert Fact("largest context", "41 tokens") in results_of(attention(*SIZES))


def test_an_empty_sequence_among_packed_ones_stops_no_probe(tmp_path):
    example = Example(torch.randn(7, 16), torch.tensor([0, 3, 0, 4]))
    with written(tmp_path, CELLS) as attention:
        assert check(attention, example=example).findings == ()


FEATURES = """import torch
from torch import nn


class Attention(nn.Module):
    '''Attention of the features of a series to each other.'''

    def __init__(self, n_features, window_size):
        super().__init__()
        self.n_features, self.window_size = n_features, window_size
        self.pair = nn.Linear(2 * window_size, 1)
        self.bias = nn.Parameter(torch.zeros(n_features, n_features))

    def forward(self, x):
        # x: (b, n, k): b batch, n window size, k features
        x, n = x.transpose(1, 2), self.n_features
        left, right = x.repeat_interleave(n, dim=1), x.repeat(1, n, 1)
        pairs = torch.cat((left, right), dim=2).view(len(x), n, n, SIZE)
        weights = torch.softmax(self.pair(pairs.tanh()).squeeze(3) + self.bias, dim=2)
        return (weights @ x).transpose(1, 2)
"""


@pytest.mark.parametrize(
    ("size", "names"), [("2 * self.window_size", []), ("10", ["length-dependent"])]
)
def test_a_window_that_the_constructor_takes_may_be_the_only_length(tmp_path, size, names):
    with written(tmp_path, FEATURES.replace("SIZE", size)) as attention:
        assert [it.name for it in check(attention).bugs] == names


WHOLE_MASK = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, SIZE):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("mask", torch.full((SIZE, SIZE), float("-inf")).triu(1))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5 + self.mask
        return self.out(scores.softmax(dim=-1) @ v)
"""


@pytest.mark.parametrize(
    ("size", "names"), [("example_length", []), ("max_len", ["length-dependent"])]
)
def test_a_mask_of_the_length_of_all_examples_need_not_be_cut(tmp_path, size, names):
    with written(tmp_path, WHOLE_MASK.replace("SIZE", size)) as attention:
        assert [it.name for it in check(attention).bugs] == names
