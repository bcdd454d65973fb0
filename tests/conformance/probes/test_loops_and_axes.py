"""Queries that a loop projects again, axes that broadcasting shifts, and whole numbers made of parameters."""

import pytest
from gapped_attention import bugs_in, self_attention

pytestmark = pytest.mark.slow

LOOPED = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, hidden_size, embed_size):
        super().__init__()
        self.key = nn.Linear(embed_size, hidden_size, bias=False)
        self.query = nn.Linear(hidden_size, hidden_size, bias=False)
        self.score = nn.Linear(hidden_size, 1)

    def forward(self, state, topics):
        scores = []
        for i in range(topics.shape[1]):
            STATE = self.query(state)
            scores.append(self.score(torch.tanh(STATE + self.key(topics[:, i]))))
        weights = torch.cat(scores, 1).softmax(1)
        return torch.bmm(weights.unsqueeze(1), topics).squeeze(1)
"""


def test_a_query_is_projected_once_for_each_key(tmp_path):
    assert bugs_in(tmp_path, LOOPED.replace("STATE", "state")) == {
        "weights-wrong": "state = self.query(state)"
    }
    assert not bugs_in(tmp_path, LOOPED.replace("STATE", "query"))


POOLED = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(hidden_size, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, lstm_output, mask=None):
        weights = self.energy(lstm_output).softmax(1)
        if mask is not None:
            weights = weights * mask.unsqueeze(-1)
            weights = weights / (weights.sum(dim=1, keepdim=True) + 1e-8)
        return (lstm_output * weights).sum(dim=1), weights
"""


def test_weights_with_an_axis_too_many_meet_other_tokens(tmp_path):
    widened = POOLED.replace("output * weights)", "output * weights.unsqueeze(-1))")
    assert bugs_in(tmp_path, widened) == {
        "batch-mixed": "return (lstm_output * weights.unsqueeze(-1)).sum(dim=1), weights"
    }


def test_weights_that_are_divided_by_their_sum_again_hide_padding_up_to_an_epsilon(tmp_path):
    assert not bugs_in(tmp_path, POOLED)
    coarse = POOLED.replace("1e-8", "1e-2")
    assert [*bugs_in(tmp_path, coarse)] == ["mask-after-softmax"]


JOINED = """import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.score = nn.Linear(2 * dim, 1)

    def forward(self, p, x):
        q, k = self.query(p), self.key(x)
        T, S = q.shape[1], k.shape[1]
        q, k = q[:, :, None].expand(-1, -1, S, -1), k[:, None].expand(-1, T, -1, -1)
        pairs = torch.cat([q, k], dim=-1)
        weights = self.score(EDIT).squeeze(-1).softmax(2)
        return weights @ self.value(x)
"""


def test_a_query_that_is_joined_with_as_many_keys_cancels_out(tmp_path):
    assert bugs_in(tmp_path, JOINED.replace("EDIT", "pairs")) == {
        "weights-wrong": "pairs = torch.cat([q, k], dim=-1)"
    }
    assert not bugs_in(tmp_path, JOINED.replace("EDIT", "torch.tanh(pairs)"))


CHANNELS = """from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, args, channel_size):
        super().__init__()
        self.fc = nn.Linear(channel_size, channel_size)

    def forward(self, weighted_features):
        columns = weighted_features.permute(0, 2, 1)
        weights = F.softmax(self.fc(columns), DIM)
        return (columns * weights).permute(0, 2, 1)
"""


@pytest.mark.filterwarnings("ignore:Implicit dimension")
def test_a_softmax_without_a_dimension_is_over_the_first_of_three(tmp_path):
    assert [*bugs_in(tmp_path, CHANNELS.replace(", DIM", ""))] == ["batch-mixed"]
    assert not bugs_in(tmp_path, CHANNELS.replace("DIM", "-1"))


SPARSE = """if self.sparse:
            size = max(SIZE, 1)
            least = scores.topk(min(size, scores.shape[-1])).values[..., -1:]
            scores = scores.masked_fill(scores < least, -torch.inf)KEPT"""
SHARE = "self.sparse = sparse\n        self.share = nn.Parameter(torch.tensor(0.4))"


@pytest.mark.parametrize(
    ("size", "kept", "found"),
    [
        ("int(self.share.sigmoid() * scores.shape[-1])", "", ["gradient-wrong"]),
        ("int(self.share)", "", ["gradient-wrong"]),
        ("int(self.share * 7)", "\n            scores = scores * self.share", []),
        ("3", "\n            scores = scores * self.share", []),
    ],
)
def test_a_whole_number_gives_its_parameter_no_gradient(tmp_path, size, kept, found):
    source = self_attention(SPARSE.replace("SIZE", size).replace("KEPT", kept), SHARE)
    bugs = bugs_in(tmp_path, source.replace("heads=4)", "heads=4, sparse=False)"))
    assert [it for it in bugs if it == "gradient-wrong"] == found


FUSED = """import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, dim, num_heads=4, num_kv_heads=None, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads or num_heads
        self.size = dim // num_heads
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * self.size * self.num_kv_heads)
        self.attn_drop, self.proj_drop = attn_drop, nn.Dropout(proj_drop)
        self.proj_drop_prob = proj_drop
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        q = self.q(x).unflatten(-1, (self.num_heads, self.size)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, self.num_kv_heads, self.size)).permute(2, 0, 3, 1, 4)
        SHARED
        context = F.scaled_dot_product_attention(q, k, v, dropout_p=RATE if self.training else 0.0)
        return self.proj_drop(self.out(context.transpose(1, 2).flatten(2)))
"""
REPEATED = "k, v = (it.repeat_interleave(self.num_heads // self.num_kv_heads, 1) for it in (k, v))"


def test_weights_are_dropped_with_their_own_probability(tmp_path):
    source = FUSED.replace("SHARED", REPEATED)
    assert [*bugs_in(tmp_path, source.replace("RATE", "self.proj_drop_prob"))] == ["dropout-unused"]
    assert not bugs_in(tmp_path, source.replace("RATE", "self.attn_drop"))


def test_fewer_key_heads_than_heads_fail_in_the_fused_attention(tmp_path):
    source = FUSED.replace("SHARED", "pass").replace("RATE", "self.attn_drop")
    assert [*bugs_in(tmp_path, source)] == ["crashes"]
