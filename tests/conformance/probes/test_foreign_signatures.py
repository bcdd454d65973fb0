"""Right modules that were refused or blamed because of how they are built and called, and bugs within them."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from heedful import check

pytestmark = pytest.mark.slow

NOTHING, NO_CACHE = torch.empty(0), torch.zeros(0, 0, 0, 0)


class DecoderSteps(nn.Module):
    """The encoder's keys and padding are computed once and kept until `reset` is called."""

    def __init__(self, eprojs: int = 24, dunits: int = 24, width: int = 12) -> None:
        super().__init__()
        self.of_frames, self.of_state = nn.Linear(eprojs, width), nn.Linear(dunits, width)
        self.to_score = nn.Linear(width, 1)
        self.reset()

    def reset(self):
        self.keys = self.hidden = None

    def forward(self, enc_hs_pad, enc_hs_len, dec_z):
        """
        :param enc_hs_pad: padded frames (B x T x D)
        :param enc_hs_len: their lengths (B)
        :param dec_z: state of the decoder (B x D)
        """
        if self.keys is None:
            self.keys = self.of_frames(enc_hs_pad)
            lengths = torch.as_tensor(enc_hs_len)
            self.hidden = torch.arange(enc_hs_pad.size(1)) >= lengths[:, None]
        scores = self.to_score(torch.tanh(self.keys + self.of_state(dec_z)[:, None])).squeeze(-1)
        weights = scores.masked_fill(self.hidden, float("-inf")).softmax(-1)
        return (weights[..., None] * enc_hs_pad).sum(1), weights


class KeptPlaces(nn.Module):
    """The first call makes vectors for the places of all tokens, which `reset` leaves as they are."""

    def __init__(self, d_model: int = 24) -> None:
        super().__init__()
        self.calls, self.places = 0, None
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def reset(self):
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.places is None:
            self.places = torch.outer(torch.arange(99.0), torch.arange(24.0)).sin().to(x)
        q, k, v = self.qkv(x + self.places[: x.shape[1]]).chunk(3, -1)
        return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


class OfNodes(nn.Module):
    """Attention between the nodes of a graph, whose width has the name of the side of a feature map."""

    def __init__(self, feat_size, num_heads):
        super().__init__()
        assert feat_size % num_heads == 0, "num_heads must divide feat_size"
        self.num_heads = num_heads
        self.qkv = nn.Linear(feat_size, 3 * feat_size)

    def forward(self, ndata):
        q, k, v = self.qkv(ndata).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return (self.scaled(q) @ k.mT).softmax(-1).matmul(v).transpose(1, 2).flatten(2)

    def scaled(self, q):
        return q / math.sqrt(q.shape[-1])


class OfNodesScaledUp(OfNodes):
    """The queries are multiplied by the root of the head size."""

    def scaled(self, q):
        return q / q.shape[-1] ** -0.5


class OfFields(nn.Module):
    """Attentive pooling of pairs of fields, with one rate of dropout for the weights and one for the result."""

    def __init__(self, embed_dim, attn_size, dropouts):
        super().__init__()
        self.hidden, self.to_score = nn.Linear(embed_dim, attn_size), nn.Linear(attn_size, 1)
        self.dropouts = dropouts

    def forward(self, x):
        row, col = torch.triu_indices(x.shape[1], x.shape[1], offset=1)
        pairs = x[:, row] * x[:, col]
        weights = self.to_score(F.relu(self.hidden(pairs))).softmax(1)
        weights = F.dropout(weights, p=self.dropouts[0], training=self.training)
        return F.dropout((weights * pairs).sum(1), p=self.dropouts[1], training=self.training)


class OfDistances(nn.Module):
    """A vector for each distance of tokens, in the argument that elsewhere takes cosines and sines."""

    def __init__(self, hidden_size: int = 24, num_heads: int = 4) -> None:
        super().__init__()
        self.heads, self.scaling = num_heads, (hidden_size // num_heads) ** -0.5
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.of_positions = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, hidden_states, position_embeddings):
        """
        Args:
            hidden_states: `(batch_size, seq_length, hidden_size)`
            position_embeddings: `(1, 2 * seq_length - 1, hidden_size)`
        """
        T = hidden_states.shape[1]
        q, k, v = self.qkv(hidden_states).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        positions = self.of_positions(position_embeddings).view(1, -1, self.heads, q.shape[-1])
        by_distance = F.pad(q @ positions.permute(0, 2, 3, 1), (1, 0))
        B, H, _, S = by_distance.shape
        by_distance = by_distance.view(B, H, S, T)[:, :, 1:].reshape(B, H, T, S - 1)[..., :T]
        weights = ((q @ k.mT + by_distance) * self.scaling).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class OfBehaviour(nn.Module):
    """Pools the items that a user chose by how they fit one candidate; a network scores each of them."""

    def __init__(self, units=(16, 8), masked_by_caller=False, embedding_dim=4):
        super().__init__()
        self.masked_by_caller = masked_by_caller
        first, second = units
        self.score = nn.Sequential(
            nn.Linear(4 * embedding_dim, first), nn.Sigmoid(), nn.Linear(first, second)
        )
        self.total = nn.Linear(second, 1)

    def forward(self, query, keys, keys_length, mask=None):
        """
        - query is a tensor with shape ``(batch_size, 1, embedding_size)``
        - keys is a tensor with shape ``(batch_size, T, embedding_size)``
        - keys_length is a tensor with shape ``(batch_size, 1)``
        """
        seen = torch.arange(keys.size(1)) < keys_length.view(-1, 1)
        if self.masked_by_caller:
            seen = mask.bool()
        query = query.expand(-1, keys.size(1), -1)
        each = self.score(torch.cat([query, keys, query - keys, query * keys], -1))
        weights = self.total(each).squeeze(-1).masked_fill(~seen, 0.0)
        return weights[:, None] @ keys


class OfPrivateSettings(nn.Module):
    """The settings have a name that is private to the class, and their fields the names of constants."""

    def __init__(self, __C):
        super().__init__()
        self.__C = __C
        self.qkv = nn.Linear(__C.HIDDEN_SIZE, 3 * __C.HIDDEN_SIZE)

    def forward(self, x, mask):
        sizes = 3, self.__C.MULTI_HEAD, self.__C.HIDDEN_SIZE_HEAD
        q, k, v = self.qkv(x).unflatten(-1, sizes).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(mask, float("-inf"))
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class OfEmptyDefaults(nn.Module):
    """Vectors of positions are added to the keys; they and the cache are empty by default, as scripting asks for."""

    def __init__(self, n_head: int, n_feat: int) -> None:
        super().__init__()
        self.heads = n_head
        self.to_q, self.to_kv = nn.Linear(n_feat, n_feat), nn.Linear(n_feat, 2 * n_feat)
        self.of_positions = nn.Linear(n_feat, n_feat, bias=False)

    def forward(
        self,
        query: torch.Tensor,
        pos_emb: torch.Tensor = NOTHING,
        cache: torch.Tensor = NO_CACHE,
    ):
        """
        Args:
            query: (batch, time, size)
            pos_emb: (batch, time, size)
            cache: (batch, heads, time, 2 * head_size)
        """
        q = self.to_q(query).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        kv = self.to_kv(query).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        if cache.size(0) > 0:
            kv = torch.cat([cache, kv], 2)
        k, v = kv.chunk(2, -1)
        positions = self.of_positions(pos_emb).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        scores = q @ (k + positions).mT / math.sqrt(k.shape[-1])
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2), kv


RIGHT = [
    *(
        DecoderSteps,
        OfNodes,
        OfFields,
        OfDistances,
        OfBehaviour,
        OfPrivateSettings,
        OfEmptyDefaults,
    ),
]


@pytest.mark.parametrize("target", RIGHT)
def test_a_right_module_is_called_and_left_alone(target):
    assert [bug.name for bug in check(target).bugs] == []


@pytest.mark.parametrize(
    ("target", "bug"),
    [(KeptPlaces, "table-not-a-buffer"), (OfNodesScaledUp, "scale-wrong")],
)
def test_a_bug_of_such_a_module_is_named(target, bug):
    assert bug in [found.name for found in check(target).bugs]


def test_a_mask_that_a_setting_switches_off_is_a_suspicion():
    (finding,) = [it for it in check(OfBehaviour).findings if it.name == "mask-unused"]
    assert "It acts only together with masked_by_caller." in finding.proof
    assert finding.remedy == "Check it together with masked_by_caller."
