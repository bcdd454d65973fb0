"""Scores of one query at a time, of the largest keys alone, in train mode, and of sequences with a common maximum."""

import pytest
from attentions_with_caches import written
from gapped_attention import bugs_in, self_attention

from heedful import check

pytestmark = pytest.mark.slow

BIASED = """import math
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, num_heads=4):
        super().__init__()
        self.num_heads, self.size = num_heads, dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x, mask=None):
        heads = self.qkv(x).unflatten(-1, (3, self.num_heads, self.size)).permute(2, 0, 3, 1, 4)
        query, key, value = heads
        keys = key.unsqueeze(2) + torch.zeros(self.size)
        scores = (query.unsqueeze(3) @ keys.transpose(-2, -1)).squeeze(3) / SCALE
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, None] == 0, torch.finfo(x.dtype).min)
        weights = scores.softmax(-1).unsqueeze(3)
        context = (weights @ value.unsqueeze(2)).squeeze(3)
        return context.transpose(1, 2).flatten(2)
"""


def test_scores_without_the_axis_of_their_one_query_are_scaled(tmp_path):
    assert not bugs_in(tmp_path, BIASED.replace("SCALE", "math.sqrt(self.size)"))
    assert [*bugs_in(tmp_path, BIASED.replace("SCALE", "self.size"))] == ["scale-wrong"]


PRUNED = """largest, index = scores.topk(min(3, scores.shape[-1]), dim=-1)
        scores = HIDDEN.scatter_(-1, index, largest)"""


def test_scores_that_are_not_among_the_largest_are_hidden(tmp_path):
    pruned = self_attention(PRUNED)
    assert bugs_in(tmp_path, pruned.replace("HIDDEN", "torch.zeros_like(scores)")) == {
        "mask-fill-too-small": "scores = torch.zeros_like(scores).scatter_(-1, index, largest)"
    }
    assert not bugs_in(tmp_path, pruned.replace("HIDDEN", "torch.full_like(scores, -torch.inf)"))


FUSED = """import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, dim, dropout=0.1):
        super().__init__()
        self.dropout = dropout
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x, attention_mask=None, positions=None):
        '''
        Shapes:
            attention_mask - (batch, seq_len), True for tokens that are attended to
            positions - (batch, seq_len)
        '''
        (B, T, C), p = x.shape, self.dropout if self.training else 0.0
        mask = None if attention_mask is None else attention_mask.bool()[:, None, None]
        if positions is not None:
            x = x + 0.1 * positions.float().view(POSITIONS, 1).sin().to(x)
        else:
            x = x + 0.1 * torch.arange(T).float()[:, None].sin().to(x)
        query, key, value = (layer(x)[:, None] for layer in (self.q, self.k, self.v))
        causal = torch.ones(T, T, dtype=torch.bool).tril()
        both = causal if mask is None else mask & causal
        return F.scaled_dot_product_attention(query, key, value, MASKS, dropout_p=p)[:, 0]
"""


def test_a_mask_beside_is_causal_fails_in_train_mode(tmp_path):
    source = FUSED.replace("POSITIONS", "B, T")
    bugs = bugs_in(tmp_path, source.replace("MASKS, dropout_p=p", "mask, p, is_causal=True"))
    assert "scaled_dot_product_attention" in bugs["crashes"]
    assert "crashes" not in bugs_in(tmp_path, source.replace("MASKS", "both"))


def test_positions_of_the_documented_shape_are_taken(tmp_path):
    source = FUSED.replace("MASKS", "both")
    bugs = bugs_in(tmp_path, source.replace("POSITIONS", "1, T"))
    assert "positions.float().view(1, T, 1)" in bugs["crashes"]
    assert "crashes" not in bugs_in(tmp_path, source.replace("POSITIONS", "B, T"))


@pytest.mark.parametrize(("reduced", "level"), [("max()", "suspicious"), ("sum()", "bug")])
def test_a_maximum_of_all_sequences_may_be_meant(tmp_path, reduced, level):
    with written(tmp_path, self_attention(f"scores = scores / q.abs().{reduced}")) as attention:
        found = {it.name: it for it in check(attention).findings}
    assert found["batch-mixed"].level == level


SLOTS = """import torch
from torch import nn


class SlotAttention(nn.Module):
    '''Slot attention: slots compete for the tokens.'''

    def __init__(self, dim, num_slots=4, iters=3):
        super().__init__()
        self.iters, self.scale = iters, dim ** -0.5
        self.slots = nn.Parameter(torch.randn(num_slots, dim))
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        '''x: (B, C, H, W)'''
        B, C, H, W = x.shape
        x = x.flatten(2).mT
        slots = self.slots + torch.randn(B, *self.slots.shape, dtype=x.dtype)
        key, value = self.k(x), self.v(x)
        for _ in range(self.iters):
            scores = self.q(slots) @ key.mT * self.scale
            weights = scores.softmax(1)
            weights = weights / weights.sum(-1, keepdim=True)
            slots = slots + weights @ value
        return slots


Attention = SlotAttention
"""


def test_slots_read_the_tokens_before_they_are_queries_again(tmp_path):
    assert not bugs_in(tmp_path, SLOTS)


NYSTROM = """import torch
from torch import nn
from torch.nn import functional as F


def pseudo_inverse(x, iterations=6):
    inverse = x.mT / (x.abs().sum(-1).max() * x.abs().sum(-2).max())
    one = torch.eye(x.shape[-1], dtype=x.dtype)
    for _ in range(iterations):
        both = x @ inverse
        inverse = 0.25 * inverse @ (13 * one - both @ (15 * one - both @ (7 * one - both)))
    return inverse


class Attention(nn.Module):
    '''NAME: each landmark is the mean of neighbouring tokens.'''

    def __init__(self, dim, num_landmarks=256):
        super().__init__()
        self.num_landmarks, self.scale = num_landmarks, dim ** -0.5
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)

    def forward(self, x, mask=None):
        (B, T, _), m = x.shape, self.num_landmarks
        missing = -T % m
        x = F.pad(x, (0, 0, missing, 0))
        mask = torch.ones(B, T, dtype=torch.bool) if mask is None else mask.bool()
        real = F.pad(mask, (missing, 0), value=False)[..., None].to(x)
        query, key, value = (it * real for it in self.qkv(x).chunk(3, -1))
        query = query * self.scale
        groups = real.unflatten(1, (m, -1)).sum(2)
        middle_query, middle_key = (
            it.unflatten(1, (m, -1)).sum(2) / (groups + 1e-8) for it in (query, key)
        )
        hidden, lowest = groups == 0, torch.finfo(x.dtype).min
        first = (query @ middle_key.mT).masked_fill(hidden.mT, lowest).softmax(-1)
        second = (middle_query @ middle_key.mT).masked_fill(hidden.mT, lowest).softmax(-1)
        third = (middle_query @ key.mT).masked_fill(real.mT == 0, lowest).softmax(-1)
        context = first @ pseudo_inverse(second) @ (third @ value)
        return context[:, -T:]
"""


def test_nystrom_attention_is_a_design(tmp_path):
    with written(tmp_path, NYSTROM.replace("NAME", "Nystrom attention")) as attention:
        report = check(attention)
    assert report.bugs == ()
    assert {it.name for it in report.findings if it.level == "suspicious"} <= {
        "batch-mixed",
        "padding-leak",
    }


GIVEN = """import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, dim, scaling):
        super().__init__()
        self.scaling = scaling
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        return attend(self.q(x), self.k(x), self.v(x), self)


def attend(query, key, value, layer):
    by = layer.scaling
    return F.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None], scale=by)[:, 0]
"""


def test_a_scale_that_the_constructor_is_given_is_a_guess(tmp_path):
    assert not bugs_in(tmp_path, GIVEN)
