"""Sound designs of published attentions, each of which looked like a bug to a probe once."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from heedful import check
from heedful.nn import RotaryEmbedding


class Base(nn.Module):
    """Grouped attention, (B, H, T, D), whose steps the designs replace."""

    def __init__(self, d_model=24, num_heads=4, num_kv_heads=2, dropout=0.25):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.dropout = num_heads, num_kv_heads, dropout
        self.head_dim = d_model // num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, num_kv_heads * self.head_dim)
        self.v_proj = nn.Linear(d_model, num_kv_heads * self.head_dim)
        self.o_proj = nn.Linear(d_model, d_model)

    def heads(self, x):
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def repeated(self, x):
        return x.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)

    def rotated(self, query, key):
        return query, key

    def weights(self, scores):
        return F.dropout(scores.softmax(-1), self.dropout, self.training)

    def merged(self, context, x):
        return context.transpose(1, 2).flatten(2)

    def forward(self, x):
        query, key, value = (self.heads(it(x)) for it in (self.q_proj, self.k_proj, self.v_proj))
        query, key = self.rotated(query, key)
        scores = query @ self.repeated(key).mT * self.head_dim**-0.5
        context = self.weights(scores) @ self.repeated(value)
        return self.o_proj(self.merged(context, x))


class GatedContext(Base):
    """A gate of the shape of the context multiplies it before the heads are merged."""

    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(24, 24)

    def merged(self, context, x):
        context = context.transpose(1, 2).contiguous()
        gate = self.gate_proj(x).view_as(context)
        return (context * torch.sigmoid(gate)).flatten(2)


class PartlyRotatedContext(Base):
    """Half of the features of the context are rotated back before the heads are merged."""

    def merged(self, context, x):
        passed, turned = context.transpose(1, 2).chunk(2, dim=-1)
        angles = torch.arange(x.shape[1], dtype=x.dtype)[:, None, None]
        return torch.cat([passed, turned * angles.cos()], dim=-1).flatten(2)


class SinkInTheSoftmax(Base):
    """A learned logit takes part in the softmax, and its weight is thrown away before dropout."""

    def __init__(self):
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(self.num_heads))

    def weights(self, scores):
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(len(scores), -1, scores.shape[2], 1)
        probabilities = torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]
        return F.dropout(probabilities, self.dropout, self.training)


class SharedRotatedKey(Base):
    """Half of a key's features are rotated and shared by all heads, as in latent attention (MLA)."""

    def __init__(self):
        super().__init__(d_model=32, num_kv_heads=4)
        self.k_proj = nn.Linear(32, 16)
        self.k_rotated_proj = nn.Linear(32, 4)
        self.rotary = RotaryEmbedding(4)

    def heads(self, x):
        return x.unflatten(-1, (4, -1)).transpose(1, 2)

    def forward(self, x):
        positions = torch.arange(x.shape[1])
        passed, turned = self.heads(self.q_proj(x)).split([4, 4], dim=-1)
        query = torch.cat([passed, self.rotary(turned, positions)], dim=-1)
        turned = self.rotary(self.k_rotated_proj(x)[:, None], positions).expand(-1, 4, -1, -1)
        key = torch.cat([self.heads(self.k_proj(x)), turned], dim=-1)
        context = self.weights(query @ key.mT * self.head_dim**-0.5) @ self.heads(self.v_proj(x))
        return self.o_proj(self.merged(context, x))


class ChosenKeys(Base):
    """An indexer chooses keys by their largest scores, and drops the scores themselves."""

    def __init__(self):
        super().__init__()
        self.index_q, self.index_k = nn.Linear(24, 32), nn.Linear(24, 8)
        self.index_weights = nn.Linear(24, 4)

    def forward(self, x):
        query, key, value = (self.heads(it(x)) for it in (self.q_proj, self.k_proj, self.v_proj))
        compared = self.index_q(x).unflatten(-1, (4, 8)) @ self.index_k(x).mT.unsqueeze(1)
        index = (self.index_weights(x).unsqueeze(-2) @ compared.relu()).squeeze(-2)
        chosen = index.topk(min(4, x.shape[1]), dim=-1).indices
        hidden = torch.ones_like(index, dtype=torch.bool).scatter(-1, chosen, False)[:, None]
        scores = query @ self.repeated(key).mT * self.head_dim**-0.5
        context = self.weights(scores.masked_fill(hidden, -torch.inf)) @ self.repeated(value)
        return self.o_proj(self.merged(context, x))


class ShortConvolution(Base):
    """Keys and values are sums over windows of the last three tokens, with weights made from the tokens."""

    def __init__(self):
        super().__init__()
        self.weights_proj = nn.Linear(24, 3)

    def forward(self, x):
        windows = F.pad(x.mT, (2, 0)).unfold(-1, 3, 1)
        mixed = (windows * self.weights_proj(x).unsqueeze(1)).sum(-1).mT
        query = self.heads(self.q_proj(x))
        key, value = (self.repeated(self.heads(it(mixed))) for it in (self.k_proj, self.v_proj))
        return self.o_proj(
            self.merged(self.weights(query @ key.mT * self.head_dim**-0.5) @ value, x)
        )


class ShiftedValues(Base):
    """Half of each value comes from the token before."""

    def __init__(self):
        super().__init__(num_kv_heads=4)
        self.now, self.before = nn.Linear(24, 12), nn.Linear(24, 12)
        del self.v_proj

    def forward(self, x):
        before = self.before(x)
        before = torch.cat([torch.zeros_like(before[:, :1]), before[:, :-1]], dim=1)
        value = self.heads(torch.cat([self.now(x), before], dim=-1))
        query, key = (self.heads(it(x)) for it in (self.q_proj, self.k_proj))
        return self.o_proj(
            self.merged(self.weights(query @ key.mT * self.head_dim**-0.5) @ value, x)
        )


class HiddenDiagonal(Base):
    """A mask that is an identity matrix hides each token from itself, so that it looks at its neighbors."""

    def weights(self, scores):
        own = torch.eye(scores.shape[-1], dtype=torch.bool)
        return super().weights(scores.masked_fill(own, torch.finfo(scores.dtype).min))


class RepeatedInTurn(Base):
    """The key heads are repeated in turn, which is stated."""

    def repeated(self, x):
        # All heads in turn, instead of interleaving them.
        return x.repeat(1, self.num_heads // self.num_kv_heads, 1, 1)


class HardAssignment(nn.Module):
    """Each token is given to one of the groups, by Gumbel's softmax with a straight-through gradient."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(24, 24) for _ in range(3))

    def forward(self, query, key):
        logits = self.q_proj(query) @ self.k_proj(key).mT * 24**-0.5
        if self.training:
            logits = logits - torch.empty_like(logits).exponential_().log()
        soft = logits.softmax(dim=-2)
        largest = soft.argmax(dim=-2, keepdim=True)
        hard = torch.zeros_like(logits).scatter_(-2, largest, 1.0)
        weights = hard - soft.detach() + soft
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1)
        return weights @ self.v_proj(key)


@pytest.mark.parametrize(
    "design",
    [
        *(GatedContext, PartlyRotatedContext, SinkInTheSoftmax, SharedRotatedKey, ChosenKeys),
        *(ShortConvolution, ShiftedValues, HiddenDiagonal, HardAssignment, RepeatedInTurn),
    ],
)
def test_a_sound_design_raises_no_alarm(design):
    torch.manual_seed(0)
    assert [finding.proof for finding in check(design()).bugs] == []


class Masked(Base):
    """The caller's additive mask is the only one."""

    def forward(self, x, attention_mask, angles=None):
        query, key, value = (self.heads(it(x)) for it in (self.q_proj, self.k_proj, self.v_proj))
        if angles is not None:
            query, key = (turned(it, angles) for it in (query, key))
        scores = query @ self.repeated(key).mT * self.head_dim**-0.5 + attention_mask
        return self.o_proj(self.merged(self.weights(scores) @ self.repeated(value), x))


class Replaced(Base):
    """It is causal unless a mask is given, which must then be causal, too."""

    def forward(self, x, mask=None):
        query, key, value = (self.heads(it(x)) for it in (self.q_proj, self.k_proj, self.v_proj))
        key, value = self.repeated(key), self.repeated(value)
        dropped = self.dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropped, is_causal=mask is None
        )
        return self.o_proj(self.merged(context, x))


class Mixed(Base):
    """A convolution over the tokens stands beside the attention, and does not know of the padding."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(24, 24, 3, padding=1)

    def forward(self, x, attention_mask=None):
        query, key, value = (self.heads(it(x)) for it in (self.q_proj, self.k_proj, self.v_proj))
        scores = query @ self.repeated(key).mT * self.head_dim**-0.5
        if attention_mask is not None:
            scores = scores + attention_mask
        context = self.merged(self.weights(scores) @ self.repeated(value), x)
        return self.o_proj(context + self.conv(x.mT).mT)


def turned(x, angles):
    x1, x2 = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat([-x2, x1], dim=-1) * angles.sin()


def causal_mask(T=9):
    return torch.full((T, T), torch.finfo(torch.float32).min).triu(1).expand(2, 1, T, T)


def angles_of_patches():
    """Return angles by rows and columns of 3 × 3 patches."""
    rows = torch.arange(9) // 3
    return torch.stack([rows, torch.arange(9) % 3, rows] * 2, dim=-1).float()


@pytest.mark.parametrize(
    ("design", "others"),
    [
        (Masked, (causal_mask(),)),
        (Masked, (torch.zeros(2, 1, 1, 9), angles_of_patches())),
        (Replaced, ()),
        (Mixed, ()),
    ],
    ids=["additive mask", "patches", "replaced mask", "convolution"],
)
def test_a_sound_design_with_an_example_raises_no_alarm(design, others):
    torch.manual_seed(0)
    report = check(design(), example=(torch.randn(2, 9, 24), *others))
    assert [finding.proof for finding in report.bugs] == []


def test_the_mask_of_an_example_stays_causal_beside_padding():
    torch.manual_seed(0)
    example = (torch.randn(2, 9, 24), causal_mask())
    facts = {fact.name: fact.value for fact in check(Masked(), example=example).facts}
    assert facts["causal"] == "yes"
    assert facts["padding mask"] == "attention_mask (B, 1, 1, T), added to the scores"


def test_padding_behind_a_convolution_is_suspicious():
    torch.manual_seed(0)
    report = check(Mixed(), example=(torch.randn(2, 9, 24),))
    (finding,) = (it for it in report.findings if it.name == "padding-leak")
    assert finding.level == "suspicious"
    assert "convolution" in finding.proof


def test_a_query_with_a_single_key_is_not_said_to_be_ignored():
    class Crossed(Base):
        def forward(self, x, encoder_hidden_states):
            query = self.heads(self.q_proj(x))
            key, value = (
                self.repeated(self.heads(it(encoder_hidden_states)))
                for it in (self.k_proj, self.v_proj)
            )
            context = self.weights(query @ key.mT * self.head_dim**-0.5) @ value
            return self.o_proj(self.merged(context, x))

    report = check(Crossed(), example=(torch.randn(2, 9, 24), torch.randn(2, 1, 24)))
    assert [finding.proof for finding in report.bugs] == []
