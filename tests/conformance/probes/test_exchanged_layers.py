"""Layers that are called in place of others, heads that are never split, and scores in place of their softmax."""

import pytest
from attentions_with_caches import written
from gapped_attention import bugs_in, self_attention

from heedful import check

pytestmark = pytest.mark.slow

CROSS = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, query, key, value):
        q, k, v = self.query(QUERY), self.key(KEY), self.value(value)
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))
"""


def test_the_layers_of_queries_and_keys_get_each_other_s_arguments(tmp_path):
    exchanged = CROSS.replace("QUERY", "key").replace("KEY", "query")
    (bug,) = bugs_in(tmp_path, exchanged).items()
    assert bug[0] == "keys-values-swapped"
    assert "self.key(query)" in bug[1]
    assert not bugs_in(tmp_path, CROSS.replace("QUERY", "query").replace("KEY", "key"))


SHARED = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.for_queries = nn.Linear(dim, dim)
        self.for_keys = nn.Linear(dim, dim)
        self.for_values = nn.Linear(dim, dim)
        self.last = nn.Linear(dim, dim)

    def forward(self, x):
        q = self.LAYER(x)
        k = self.last(x)
        v = self.last(x)
        return self.last((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v)
"""


def test_one_layer_is_called_in_place_of_three(tmp_path):
    bugs = bugs_in(tmp_path, SHARED.replace("LAYER", "last"))
    assert bugs == {"projection-unused": "q = self.last(x)"}


ONE_HEAD = """import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        context = ATTEND
        return self.out(context)

    def split(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
"""
TOGETHER = "F.scaled_dot_product_attention(q, k, v)"
SPLIT = "F.scaled_dot_product_attention(*map(self.split, (q, k, v))).transpose(1, 2).flatten(2)"


def test_heads_that_are_never_split_have_no_effect(tmp_path):
    bugs = bugs_in(tmp_path, ONE_HEAD.replace("ATTEND", TOGETHER))
    assert [*bugs] == ["heads-mixed-split"]
    assert not bugs_in(tmp_path, ONE_HEAD.replace("ATTEND", SPLIT))


@pytest.mark.parametrize(("applied", "names"), [("scores", ["attention-ignored"]), ("weights", [])])
def test_values_are_multiplied_by_the_softmax_of_the_scores(tmp_path, applied, names):
    source = self_attention("weights = scores.softmax(-1)")
    source = source.replace("scores.softmax(-1) @ v)", f"{applied} @ v)")
    source = source.replace("flatten(2))\n", "flatten(2)), weights\n")
    bugs = bugs_in(tmp_path, source)
    assert [it for it in bugs if it == "attention-ignored"] == names
    assert all("scores @ v" in line for name, line in bugs.items() if name == "attention-ignored")


BLOCKS = """import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(dim, dim), nn.PReLU(), nn.Dropout(0.2))

    def forward(self, x):
        return self.layers(x)


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.query, self.key, self.value = Block(dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        q, k, v = self.query(x), self.key(x), self.value(x)
        EDIT
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
"""


def test_a_block_that_projects_may_drop_features_as_any_layer(tmp_path):
    assert not bugs_in(tmp_path, BLOCKS.replace("EDIT", "pass"))
    with written(tmp_path, BLOCKS.replace("EDIT", "pass")) as target:
        (finding,) = (it for it in check(target).findings if it.name == "dropout-misplaced")
    assert finding.level == "suspicious"
    own = BLOCKS.replace("EDIT", "k = self.dropout(k)").replace(", nn.Dropout(0.2))", ")")
    assert [*bugs_in(tmp_path, own)] == ["dropout-misplaced"]


TWO_MASKS = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x, context, mask=None, context_mask=None):
        scores = self.query(x) @ self.key(context).mT * x.shape[-1] ** -0.5
        if mask is not None or context_mask is not None:
            B, Tq, Tk = scores.shape
            mask = torch.ones(B, Tq, dtype=torch.bool) if mask is None else mask
            if context_mask is None:
                context_mask = torch.ones(B, Tk, dtype=torch.bool)
            seen = mask[:, :, None] & context_mask[:, None]
            scores = scores.masked_fill(~seen, -torch.finfo(scores.dtype).max)
        weights = (scores - scores.amax(-1, keepdim=True)).softmax(-1)
        return weights @ self.value(context)
"""


def test_queries_that_are_hidden_as_a_whole_are_no_weak_fill(tmp_path):
    assert not bugs_in(tmp_path, TWO_MASKS)


BLOCK = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        residual = x
        x = self.norm1(x)
        attended, _ = self.attention(x, x, x)
        x = FIRST + attended
        return SECOND
"""
PLAIN, NORMED = "x + self.mlp(self.norm2(x))", "self.norm2(x + self.mlp(x))"


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        ("x", PLAIN, ["context-wrong"]),  # only the second connection adds what its norm is given
        ("residual", PLAIN, []),
        ("x", NORMED, []),  # no connection adds it
    ],
)
def test_one_residual_connection_adds_the_norm_and_another_what_its_norm_is_given(
    tmp_path, first, second, names
):
    bugs = bugs_in(tmp_path, BLOCK.replace("FIRST", first).replace("SECOND", second))
    assert [*bugs] == names
    assert all("x + attended" in line for line in bugs.values())
