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


@pytest.mark.parametrize(
    "design", [GatedContext, PartlyRotatedContext, SinkInTheSoftmax, SharedRotatedKey]
)
def test_a_sound_design_raises_no_alarm(design):
    torch.manual_seed(0)
    assert [finding.proof for finding in check(design()).bugs] == []
