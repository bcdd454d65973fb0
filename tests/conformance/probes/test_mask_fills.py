"""The numbers that masks fill scores with, and the lines that define them."""

import pytest
import torch
from attentions_with_caches import written
from edited_attention import APPLY_MASK, CORRECT, MASK_BUFFER, edited
from torch import nn
from torch.nn import functional as F

from heedful import check


@pytest.mark.parametrize(
    "fill", ['float("inf")', "-float('-inf')", "1e9", "torch.finfo(x.dtype).max"]
)
def test_a_large_positive_fill_is_found_on_its_line(tmp_path, fill):
    with edited(tmp_path, APPLY_MASK, APPLY_MASK.replace('float("-inf")', fill)) as attention:
        (bug,) = check(attention, causal=True).bugs
    assert bug.name == "mask-fill-positive"
    assert bug.place is not None
    assert "masked_fill" in bug.place.source


def test_the_line_is_where_a_local_variable_is_assigned(tmp_path):
    lines = '        fill = -float("-inf")\n' + APPLY_MASK.replace('float("-inf")', "fill")
    with edited(tmp_path, APPLY_MASK, lines) as attention:
        (bug,) = check(attention, causal=True).bugs
    assert bug.name == "mask-fill-positive"
    assert bug.place is not None
    assert bug.place.source == "fill = -float('-inf')"


@pytest.mark.parametrize("fill", ["-100.0", "1e-9"])
def test_the_line_of_a_small_fill_is_where_its_buffer_is_registered(tmp_path, fill):
    register = f'        self.register_buffer("fill", torch.tensor({fill}))\n'
    source = CORRECT.replace(MASK_BUFFER, MASK_BUFFER + register)
    filled = "        scores = torch.where(self.mask[:T, :T], self.fill, scores)\n"
    with edited(tmp_path, APPLY_MASK, filled, source) as attention:
        (bug,) = check(attention, causal=True).bugs
    assert bug.name == "mask-fill-too-small"
    assert bug.place is not None
    assert "register_buffer('fill'" in bug.place.source


def test_distances_that_are_negated_may_be_filled_with_infinity(tmp_path):
    lines = '        scores = -(-scores).masked_fill(self.mask[:T, :T], float("inf"))\n'
    with edited(tmp_path, APPLY_MASK, lines) as attention:
        assert not check(attention, causal=True).bugs


@pytest.mark.parametrize(
    ("comment", "level"), [("# trained in half precision", "bug"), ("# masked", "suspicious")]
)
def test_a_fill_that_float16_cannot_hold_is_a_bug_if_the_code_speaks_of_half_precision(
    tmp_path, comment, level
):
    too_large = APPLY_MASK.replace('float("-inf")', "-1e9")
    source = CORRECT.replace("import torch\n", f'"""{comment[2:]}"""\nimport torch\n', 1)
    with edited(tmp_path, APPLY_MASK, too_large, source) as attention:
        (finding,) = check(attention, causal=True).findings
    assert (finding.name, finding.level) == ("mask-fill-overflow", level)
    assert finding.place is not None
    assert "-1e9" in finding.place.source


def test_a_fill_in_float32_may_be_larger_than_float16_can_hold(tmp_path):
    upcast = APPLY_MASK.replace("scores.masked", "scores.double().masked")
    upcast = upcast.replace('float("-inf")', "-1e9").rstrip("\n") + ".to(scores.dtype)\n"
    with edited(tmp_path, APPLY_MASK, upcast) as attention:
        assert not check(attention, causal=True).findings


ADDED_BY_A_BLOCK = '''"""Pre-norm blocks, trained with mixed precision."""
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=16, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, hidden=None):
        """hidden: of shape (T, T), True where a query must not see a key."""
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / (C // self.heads) ** 0.5
        if hidden is not None:
            bias = torch.zeros(T, T, dtype=x.dtype)
            bias.masked_fill_(hidden, FILL)
            scores = scores + bias
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))
'''


@pytest.mark.parametrize(("fill", "bugs"), [("-1e9", 1), ("-1e4", 0)])
def test_a_fill_under_a_mask_of_queries_and_keys_is_tried_in_half_precision(tmp_path, fill, bugs):
    source = ADDED_BY_A_BLOCK.replace("FILL", fill)
    with edited(tmp_path, "", "", source) as attention:
        found = check(attention).bugs
    assert [bug.name for bug in found] == ["mask-fill-overflow"] * bugs
    assert all("bias.masked_fill_" in bug.place.source for bug in found)


class BlockAttention(nn.Module):
    """Tokens of a pair attend to each other alone."""

    weigh = staticmethod(lambda scores, near: (scores * near).softmax(dim=-1))

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.to_q, self.to_kv = nn.Linear(d_model, d_model), nn.Linear(d_model, 2 * d_model)

    def forward(self, x):
        q, (k, v) = self.to_q(x), self.to_kv(x).chunk(2, dim=-1)
        pair = torch.arange(x.shape[1]) // 2
        near = (pair[:, None] == pair).to(x.dtype)
        scores = torch.einsum("bid, bjd -> bij", q, k) * q.shape[-1] ** -0.5
        return torch.einsum("bij, bjd -> bid", self.weigh(scores, near), v)


class PairsWithInfinity(BlockAttention):
    weigh = staticmethod(lambda scores, near: (scores * near - 1e9 * (1 - near)).softmax(dim=-1))


class PairsByLargest(BlockAttention):
    """Multiplies by what the scores themselves choose, which is a design."""

    weigh = staticmethod(lambda scores, near: (scores * (scores > 0.1)).softmax(dim=-1))


class GraphAttention(nn.Module):
    """Compares nodes by a sum, without queries and keys."""

    masked = staticmethod(lambda e, adj: e.mul(adj > 0))

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.W = nn.Linear(in_features, out_features, bias=False)
        self.a = nn.Linear(2 * out_features, 1, bias=False)

    def forward(self, h, adj):
        Wh = self.W(h)
        N = len(Wh)
        pairs = torch.cat([Wh[:, None].expand(N, N, -1), Wh[None].expand(N, N, -1)], dim=-1)
        e = F.leaky_relu(self.a(pairs).squeeze(-1), 0.2)
        return F.elu(F.softmax(self.masked(e, adj), dim=1) @ Wh)


class FilledGraphAttention(GraphAttention):
    masked = staticmethod(lambda e, adj: torch.where(adj > 0, e, -9e15))


class FaintGraphAttention(GraphAttention):
    masked = staticmethod(lambda e, adj: torch.where(adj > 0, e, 9e-15))


class FaintlyFilledGraphAttention(GraphAttention):
    masked = staticmethod(lambda e, adj: torch.where(adj > 0, e, torch.full_like(e, 9e-15)))


def graph():
    return torch.randn(5, 8), torch.eye(5) + torch.eye(5).roll(1, 0)


GRAPH = {"arguments": {"in_features": 8, "out_features": 6}, "example": graph}


@pytest.mark.parametrize(("target", "options"), [(BlockAttention, {}), (GraphAttention, GRAPH)])
def test_a_mask_that_is_multiplied_into_the_scores_hides_nothing(target, options):
    (bug,) = (it for it in check(target, **options).bugs if it.name == "mask-fill-too-small")
    assert bug.place is not None
    assert "near" in bug.place.source or "adj" in bug.place.source


@pytest.mark.parametrize("target", [FaintGraphAttention, FaintlyFilledGraphAttention])
def test_a_fill_like_scores_is_named_before_any_softmax(target):
    (bug,) = (it for it in check(target).bugs if it.name == "mask-fill-too-small")
    assert "exp(9e-15) is 1" in bug.proof
    assert not check(FilledGraphAttention).bugs


@pytest.mark.parametrize(
    ("target", "options"),
    [(PairsWithInfinity, {}), (PairsByLargest, {}), (FilledGraphAttention, GRAPH)],
)
def test_a_mask_that_hides_or_is_a_choice_is_no_weak_fill(target, options):
    assert "mask-fill-too-small" not in [bug.name for bug in check(target, **options).bugs]


class Masked(nn.Module):
    """Hides the pairs that its caller marks."""

    fill = -torch.inf

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x, marked):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(marked, self.fill)
        return scores.softmax(-1) @ v


class MaskedFaintly(Masked):
    fill = 1e-9


class NegativeAsZero(nn.Module):
    """Takes negative scores for 0, which is a choice and hides nothing."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return scores.masked_fill(scores < 0, 0.0).softmax(-1) @ v


PAIRS = torch.randn(2, 6, 16), torch.ones(6, 6, dtype=torch.bool).triu(1)


def test_a_fill_like_the_scores_hides_none_of_the_pairs_of_an_example():
    (bug,) = check(MaskedFaintly(), example=PAIRS).bugs
    assert bug.name == "mask-fill-too-small"
    assert bug.place is not None
    assert "masked_fill" in bug.place.source


@pytest.mark.parametrize(("target", "example"), [(Masked(), PAIRS), (NegativeAsZero(), None)])
def test_fills_that_hide_or_are_a_choice_are_left_alone(target, example):
    assert not check(target, example=example).bugs


# Scores with the heads last. The weights take another tensor's dtype, but nothing else from it.
HEADS_LAST = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model=32, n_heads=4):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, mask):
        '''x: (batch, tokens, features). mask: True hides a key.'''
        q, k, v = (f(x).unflatten(-1, (self.n_heads, -1)) for f in (self.q, self.k, self.v))
        scores = torch.einsum("bqhd,bkhd->bqkh", q, k) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(mask, float("-inf"))
        weights = scores.softmax(2).type_as(q)
        return self.o(torch.einsum("bqkh,bkhd->bqhd", weights, v).flatten(2))
"""
HEADS_FIRST = (
    HEADS_LAST.replace("->bqkh", "->bhqk")
    .replace("bqkh,", "bhqk,")
    .replace("softmax(2)", "softmax(-1)")
    .replace("masked_fill(mask,", "masked_fill(mask[:, None, None],")
)
WEAK = ('float("-inf")', "1e-9")
CAST = "scores.softmax(-1).type_as(q)"
TWICE = (CAST, f"{CAST}.softmax(-1).type_as(q)")


@pytest.mark.parametrize(
    ("source", "edits", "names"),
    [
        (HEADS_LAST, [], set()),
        (HEADS_LAST, [WEAK], {"mask-fill-too-small"}),
        (HEADS_FIRST, [], set()),
        (HEADS_FIRST, [TWICE], {"softmax-twice"}),
        (HEADS_FIRST, [WEAK, TWICE], {"mask-fill-too-small", "softmax-twice"}),
    ],
)
def test_a_weak_fill_and_a_second_softmax_are_both_named(tmp_path, source, edits, names):
    for old, new in edits:
        assert source.count(old) == 1
        source = source.replace(old, new)
    with written(tmp_path, source) as attention:
        found = {bug.name: bug for bug in check(attention).bugs}
    assert {*found} == names
    places = {"mask-fill-too-small": "1e-9", "softmax-twice": TWICE[1]}
    assert all(places[name] in bug.place.source for name, bug in found.items())
