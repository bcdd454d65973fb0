"""Texts of a constructor with which no call can work, and names that exist nowhere on lines that no call reaches."""

import pytest
from attentions_with_caches import written
from gapped_attention import bugs_in

from heedful import check

pytestmark = pytest.mark.slow

SCORES = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, method="dot"):
        super().__init__()
        self.method = method
        self.pair = nn.Linear(2 * dim, 1, bias=False)
        self.map = nn.Conv2d(dim, dim, 1)

    def forward(self, query, encoder_outputs):
        '''query: (batch, features). encoder_outputs: (batch, tokens, features).'''
        if self.method == "dot":
            scores = torch.einsum("bc,btc->bt", query, encoder_outputs)
        elif self.method == "concat":
            wide = query[:, None].expand_as(encoder_outputs)
            scores = CONCAT
        weights = scores.softmax(-1)[:, None]
        return torch.bmm(weights, encoder_outputs)[:, 0]
"""
PAIRS = "self.pair(torch.cat((wide, encoder_outputs), 2).tanh())[..., 0]"


@pytest.mark.parametrize(
    ("scores", "names"),
    [
        (PAIRS, []),
        (PAIRS.replace("2).tanh", "3).tanh"), ["crashes"]),
        (f"scores * {PAIRS}", ["crashes"]),  # a variable without a value
        ("torch.cat((self.map(query), query), 1)[:, 0]", []),  # a layer may want maps
        (
            "(wide * encoder_outputs).sum(2).flatten()",
            [],
        ),  # the line that fails is one of all texts
        ("wide[..., 0] * encoder_outputs.size(3)", []),  # a text may ask for maps
        ("(query[:, :-1, None] * encoder_outputs.mT).sum(1)", []),  # sizes may have to be equal
    ],
)
def test_a_text_of_the_constructor_ends_every_call(tmp_path, scores, names):
    bugs = bugs_in(tmp_path, SCORES.replace("CONCAT", scores))
    assert [*bugs] == names
    assert [*bugs.values()] == [f"scores = {scores}"] * len(names)


DISPATCHED = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, method, dim):
        super().__init__()
        if method not in ["dot", "concat"]:
            raise ValueError(method)
        self.method = method
        if method == "concat":
            self.pair = nn.Linear(2 * dim, dim)
            self.v = nn.Parameter(torch.empty(dim))

    def dot_score(self, query, keys):
        return (query[:, None] * keys).sum(-1)

    def concat_score(self, query, keys):
        hidden = torch.cat((query[:, None].expand_as(keys), keys), -1)
        return self.pair(hidden).tanh() @ self.v

    def forward(self, query, encoder_outputs):
        '''query: (batch, features). encoder_outputs: (batch, tokens, features).'''
        scores = getattr(self, self.method + "_score")(query, encoder_outputs)
        return torch.bmm(scores.softmax(-1)[:, None], encoder_outputs)[:, 0]
"""


@pytest.mark.parametrize(
    ("made", "names"), [("torch.randn", []), ("torch.empty", ["output-not-finite"])]
)
def test_a_text_that_chooses_a_method_is_tried(tmp_path, made, names):
    assert [*bugs_in(tmp_path, DISPATCHED.replace("torch.empty", made))] == names


NORMALIZED = """import torch
from torch import nn


def attend(query, key, value, normalize="softmax"):
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if normalize == "softmax":
        weights = scores.softmax(-1)
    elif normalize == "sigmoid":
        weights = torch.sigmoid(SCORES)
    return weights @ value


class Attention(nn.Module):
    def __init__(self, normalize="softmax"):
        super().__init__()
        self.normalize = normalize

    def forward(self, query, key, value):
        return attend(query, key, value, self.normalize)
"""


def test_texts_of_functions_that_the_class_calls_count(tmp_path):
    assert bugs_in(tmp_path, NORMALIZED.replace("SCORES", "weights")) == {
        "crashes": "weights = torch.sigmoid(weights)"
    }
    assert not bugs_in(tmp_path, NORMALIZED.replace("SCORES", "scores"))  # it asks for a sigmoid


MASKED = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x, scores_of_positions=None):
        query, key, value = self.qkv(x).chunk(3, -1)
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if x.shape[1] > 10_000:
            scores = MASKED
        return scores.softmax(-1) @ value
"""


@pytest.mark.parametrize(
    ("masked", "more", "levels"),
    [
        ("scores.clamp(min=-np.inf)", "", ["bug"]),
        (
            "scores.clamp(min=-np.inf)",
            "try:\n    import numpy as np\nexcept ImportError:\n    pass",
            [],
        ),
        ("torch.where(scores > 0, scores, lowest)", "", ["bug"]),
        ("[row + lowest for row in scores][0]", "", ["bug"]),
        ("clamped(scores)", "", ["suspicious"]),  # an excerpt of a file may lack a function
        ("scores + lowest", "if __name__ == '__main__':\n    lowest = 0.5", []),
        ("scores + lowest", "def set_up():\n    global lowest\n    lowest = 0.5", []),
    ],
)
def test_a_name_exists_nowhere(tmp_path, masked, more, levels):
    source = MASKED.replace("MASKED", masked) + more + "\n"
    with written(tmp_path, source) as attention:
        found = [it for it in check(attention).findings if it.name == "undefined-or-global-name"]
    assert [it.level for it in found] == levels
    assert all(it.place.source == f"scores = {masked}" for it in found)


GROUPED = """import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, dim, num_heads=4, num_heads_kv=None):
        super().__init__()
        self.num_heads, self.num_heads_kv = num_heads, num_heads_kv or num_heads
        self.size = dim // num_heads
        self.query = nn.Linear(dim, dim)
        self.keys = nn.Linear(dim, 2 * self.num_heads_kv * self.size)

    def forward(self, x):
        query = self.query(x).unflatten(-1, (self.num_heads, self.size)).transpose(1, 2)
        both = self.keys(x).unflatten(-1, (2, self.num_heads_kv, self.size))
        key, value = (it.transpose(1, 2) for it in both.unbind(2))
        context = F.scaled_dot_product_attention(query, key, value, GROUPS)
        return context.transpose(1, 2).flatten(2)
"""


def test_fewer_key_heads_than_heads_end_every_call(tmp_path):
    bugs = bugs_in(tmp_path, GROUPED.replace(", GROUPS", ""))
    assert [*bugs] == ["crashes"]
    assert "scaled_dot_product_attention" in bugs["crashes"]
    assert not bugs_in(tmp_path, GROUPED.replace("GROUPS", "enable_gqa=True"))


TWO_WIDTHS = """import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, input_dim, embed_dim, num_heads):
        super().__init__()
        self.qkv = nn.Linear(input_dim, 3 * embed_dim)
        self.output = nn.Linear(embed_dim, embed_dim)
        self.num_heads, self.embed_dim = num_heads, embed_dim

    def forward(self, x):
        batch, tokens, width = x.shape
        heads = self.qkv(x).view(batch, tokens, self.num_heads, -1).transpose(1, 2)
        query, key, value = heads.chunk(3, dim=-1)
        context = F.scaled_dot_product_attention(query, key, value).transpose(1, 2)
        return self.output(context.reshape(batch, tokens, WIDTH))
"""


def test_heads_are_merged_to_the_width_of_the_input(tmp_path):
    bugs = bugs_in(tmp_path, TWO_WIDTHS.replace("WIDTH", "width"))
    assert bugs == {"crashes": "return self.output(context.reshape(batch, tokens, width))"}
    assert not bugs_in(tmp_path, TWO_WIDTHS.replace("WIDTH", "self.embed_dim"))


def test_widths_that_have_to_be_equal_are_no_bug(tmp_path):
    asserting = TWO_WIDTHS.replace("WIDTH", "width").replace(
        "super().__init__()", "super().__init__()\n        assert input_dim == embed_dim"
    )
    assert not bugs_in(tmp_path, asserting)
