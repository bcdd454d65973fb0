"""Calls and constructors of attention classes that were checked as strangers had written them, in our own words."""

import pytest
from attentions_with_caches import written
from gapped_attention import bugs_in, self_attention

from heedful import check
from heedful.errors import ArgumentError

pytestmark = pytest.mark.slow

OTHER_VALUES = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, embed_time=16):
        super().__init__()
        self.to_q, self.to_k = (nn.Linear(embed_time, embed_time) for _ in range(2))
        self.out = nn.Linear(dim, dim)

    def forward(self, query, key, value, mask=None):
        scores = self.to_q(query) @ self.to_k(key).mT * query.shape[-1] ** -0.5
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        return self.out(scores.softmax(-1) @ value)
"""


def test_values_may_be_of_another_width_than_queries_and_keys(tmp_path):
    with written(tmp_path, OTHER_VALUES) as target:
        report = check(target)
    assert not report.bugs
    assert any(fact.name == "scale" for fact in report.facts)


OF_VOXELS = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, window_size, num_heads):
        super().__init__()
        self.heads = num_heads
        S, H, W = window_size
        self.biases = nn.Parameter(torch.randn((2 * S - 1) * (2 * H - 1) * (2 * W - 1), num_heads))
        places = torch.cartesian_prod(torch.arange(S), torch.arange(H), torch.arange(W))
        apart = places[:, None] - places + torch.tensor([S - 1, H - 1, W - 1])
        apart[..., 0] *= FACTOR
        apart[..., 1] *= 2 * W - 1
        self.register_buffer("rows", apart.sum(-1))
        self.to_kv = nn.Linear(dim, 2 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, skip, upper, mask=None):
        k, v = self.to_kv(skip).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q = upper.unflatten(-1, (self.heads, -1)).transpose(1, 2) * k.shape[-1] ** -0.5
        scores = q @ k.mT + self.biases[self.rows].permute(2, 0, 1)
        if mask is not None:
            scores = scores + mask[:, None]
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


def test_a_square_table_tells_how_many_tokens_a_window_has(tmp_path):
    wrong = bugs_in(tmp_path, OF_VOXELS.replace("FACTOR", "3 * W - 1"))
    assert wrong == {"weights-wrong": "apart[..., 0] *= 3 * W - 1"}
    with written(tmp_path, OF_VOXELS.replace("FACTOR", "(2 * H - 1) * (2 * W - 1)")) as target:
        assert not check(target).findings


IN_A_PART = """import torch
from torch import nn


class Biases(nn.Module):
    def __init__(self, width, *, count):
        super().__init__()
        self.mix = nn.Linear(width, count)

    def forward(self, apart):
        return self.mix(apart[..., None].expand(*apart.shape, self.mix.in_features)).permute(2, 0, 1)


class Attention(nn.Module):
    def __init__(self, dim: int, num_heads: int = None):
        super().__init__()
        self.heads = num_heads or 1
        self.biases = Biases(2, count=num_heads)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        places = torch.arange(x.shape[1], dtype=x.dtype)
        scores = q @ k.mT * q.shape[-1] ** -0.5 + self.biases((places[:, None] - places).abs())
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


def test_an_argument_that_a_part_needs_gets_a_value_though_it_is_none_by_default(tmp_path):
    with written(tmp_path, IN_A_PART) as target:
        report = check(target)
    assert not report.bugs
    assert any(fact.name == "heads" and fact.value == "4" for fact in report.facts)


ONE_HEAD_EACH = """import torch
from torch import nn

width = 32


class Head(nn.Module):
    def __init__(self, head_size):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(width, head_size) for _ in range(3))

    def forward(self, x):
        scores = self.query(x) @ self.key(x).mT * SCALE
        return scores.softmax(-1) @ self.value(x)


class Attention(nn.Module):
    def __init__(self, num_heads, head_size):
        super().__init__()
        self.heads = nn.ModuleList(Head(head_size) for _ in range(num_heads))
        self.out = nn.Linear(width, width)

    def forward(self, x):
        return self.out(torch.cat([head(x) for head in self.heads], -1))
"""


def test_heads_share_the_width_that_the_layer_behind_them_expects(tmp_path):
    assert "scale-wrong" in bugs_in(tmp_path, ONE_HEAD_EACH.replace("SCALE", "x.shape[-1] ** -0.5"))
    right = ONE_HEAD_EACH.replace("SCALE", "self.key.out_features ** -0.5")
    assert not bugs_in(tmp_path, right)


OF_PRODUCTS = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, n_in, n_emb, n_head):
        super().__init__()
        self.sizes = n_head, n_emb
        self.to_q, self.to_k, self.to_v, self.out = (nn.Linear(n_in, n_in) for _ in range(4))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (it(x).view(B, T, *self.sizes).transpose(1, 2) for it in (self.to_q, self.to_k, VALUE))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))
"""


def test_a_width_is_as_many_features_as_a_view_needs(tmp_path):
    assert "projection-unused" in bugs_in(tmp_path, OF_PRODUCTS.replace("VALUE", "self.to_k"))
    assert not bugs_in(tmp_path, OF_PRODUCTS.replace("VALUE", "self.to_v"))


OF_DISTANCES = """import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, max_len):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim) for _ in range(3))
        self.distances = nn.Parameter(torch.randn(2 * max_len - 1, dim))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)
        rows = F.pad(q @ self.distances.mT, (0, 1)).flatten(1)
        shifted = F.pad(rows, (0, T - 1)).view(B, T + 1, 2 * T - 1)[:, :T, T - 1 :]
        return ((q @ k.mT + shifted) * C**-0.5).softmax(-1) @ v
"""


def test_a_table_with_a_row_for_each_distance_tells_how_many_tokens_there_are(tmp_path):
    assert not bugs_in(tmp_path, OF_DISTANCES)


KEPT_TOGETHER = """import torch
from torch import nn


class InnerAttention(nn.Module):
    def forward(self, q, k, v):
        return (q @ k.mT * SCALE).softmax(-1) @ v


class Attention(nn.Module):
    def __init__(self, attention: nn.Module, d_model: int, heads: int):
        super().__init__()
        self.attention, self.heads = attention, heads
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.attention(q, k, v).transpose(1, 2).flatten(2)
"""


def test_a_part_may_be_kept_in_one_line_with_other_attributes(tmp_path):
    assert "scale-wrong" in bugs_in(tmp_path, KEPT_TOGETHER.replace("SCALE", "q.shape[-1] ** 0.5"))
    assert not bugs_in(tmp_path, KEPT_TOGETHER.replace("SCALE", "q.shape[-1] ** -0.5"))


DEMANDING = """if dim % heads OPERATOR 0:
            raise ValueError("dim must be divisible by heads")"""


def test_a_constructor_that_refuses_what_it_demands_is_named(tmp_path):
    refusing = self_attention("pass", DEMANDING.replace("OPERATOR", "=="))
    assert "raise ValueError" in bugs_in(tmp_path, refusing)["crashes"]
    assert not bugs_in(tmp_path, self_attention("pass", DEMANDING.replace("OPERATOR", "!=")))


def test_a_comma_in_an_annotation_makes_an_argument_that_nothing_reads(tmp_path):
    source = self_attention("pass").replace("self, x)", "self, x: torch, tensor)")
    assert "def forward" in bugs_in(tmp_path, source)["crashes"]
    assert not bugs_in(tmp_path, source.replace("torch, tensor", "torch.Tensor"))


def test_what_fits_one_sequence_alone_is_a_bug_where_an_axis_of_sequences_is_declared(tmp_path):
    made = "self.null_score = nn.Parameter(torch.randn(1, heads, 1, 1))"
    joined = (
        "scores = torch.cat((self.null_score.expand(SEQUENCES, -1, x.shape[1], -1), scores), -1)"
    )
    source = self_attention(joined, made=made).replace("softmax(-1)", "softmax(-1)[..., 1:]")
    declared = source.replace("q, k, v =", "B, T, C = x.shape\n        q, k, v =", 1)
    bugs = bugs_in(tmp_path, declared.replace("SEQUENCES", "1"))
    assert [*bugs] == ["crashes"]
    assert "null_score" in bugs["crashes"]
    assert not bugs_in(tmp_path, declared.replace("SEQUENCES", "B"))


UNBOUND = (
    "if causal:\n            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)\n"
)


def test_a_variable_that_the_defaults_leave_unbound_is_a_bug(tmp_path):
    used = "        scores = scores.masked_fill(hidden, -torch.inf)"
    source = self_attention(UNBOUND + used).replace("self, x)", "self, x, causal=False)")
    assert [*bugs_in(tmp_path, source)] == ["undefined-or-global-name"]
    within = source.replace("        scores = scores.m", "            scores = scores.m")
    assert not bugs_in(tmp_path, within)


OF_LENGTHS = """if memory_lengths is not None:
            seen = torch.arange(scores.shape[-1]) < memory_lengths[:, None, None, None]
            scores = scores.masked_fill(HIDDEN, -torch.inf)"""


def test_lengths_make_a_mask_by_operations_that_its_dtype_has(tmp_path):
    source = self_attention(OF_LENGTHS).replace("self, x)", "self, x, memory_lengths=None)")
    bugs = bugs_in(tmp_path, source.replace("HIDDEN", "(1 - seen).bool()"))
    assert [*bugs] == ["crashes"]
    assert "1 - seen" in bugs["crashes"]
    assert not bugs_in(tmp_path, source.replace("HIDDEN", "~seen"))


def test_a_list_of_numbers_below_zero_is_no_list_of_channels(tmp_path):
    source = self_attention("pass", made="self.limits = [-5, 5]")
    source = source.replace("self, x)", "self, graph)").replace(
        "self.qkv(x)", "self.qkv(graph.nodes())"
    )
    with written(tmp_path, source) as target, pytest.raises(ArgumentError, match="graph"):
        check(target)


def test_a_number_of_axes_may_be_a_width(tmp_path):
    source = self_attention("pass", made="assert dim % heads == 0").replace("dim", "n_dims")
    assert not bugs_in(tmp_path, source)
