"""Causal linear attention with normalized outputs, in the layout (batch, tokens, heads, dim)."""

import torch
import torch.nn.functional as F
from torch import nn


def normalize_output(q, k, o):
    """Divide o by the sum of the weights of each query. All are of shape [B, T, H, D]."""
    # before
    k = k.cumsum(-2)
    # after
    k = k.cumsum(1)
    # end
    z = (q * k).sum(-1, keepdim=True)
    return o / (z + 1e-10)


def naive_linear_attn(q, k, v, normalize=True):
    state = torch.einsum("bthk,bthv->bthkv", k, v).cumsum(1)
    o = torch.einsum("bthk,bthkv->bthv", q, state)
    return normalize_output(q, k, o) if normalize else o


class LinearAttention(nn.Module):
    def __init__(
        self, hidden_size: int, num_heads: int, feature_map: str = "elu", norm_output: bool = True
    ):
        super().__init__()
        self.num_heads = num_heads
        self.feature_map = feature_map
        self.norm_output = norm_output
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def apply_feature_map(self, x):
        if self.feature_map == "elu":
            return F.elu(x) + 1
        return F.relu(x)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        q = self.q_proj(hidden_states).unflatten(-1, (self.num_heads, -1))
        k = self.k_proj(hidden_states).unflatten(-1, (self.num_heads, -1))
        v = self.v_proj(hidden_states).unflatten(-1, (self.num_heads, -1))
        q, k = self.apply_feature_map(q), self.apply_feature_map(k)
        o = naive_linear_attn(q, k, v, normalize=self.norm_output)
        return self.o_proj(o.flatten(2))
