"""Causal linear attention that runs as a recurrent network, one token after the other."""

import torch
import torch.nn.functional as F
from torch import nn


def elu_feature_map(x):
    return F.elu(x) + 1


class RecurrentLinearAttention(nn.Module):
    """Linear attention whose state is the sum of the keys, and of the keys with their values.

    Arguments
    ---------
        feature_map: callable, the positive features of queries and keys (default: elu(x) + 1)
        eps: float, keeps the denominator from zero (default: 1e-6)
    """

    def __init__(self, feature_map=None, eps=1e-6):
        super().__init__()
        self.feature_map = feature_map or elu_feature_map
        self.eps = eps

    def forward(self, query, key, value, state=None):
        # query, key: (N, H, E), value: (N, H, M), of a single token
        Q = self.feature_map(query)
        K = self.feature_map(key)

        N, H, D = Q.shape
        _, _, M = value.shape

        # The first token has no state
        if state is None:
            Si = query.new_zeros((N, H, D, M))
            Zi = query.new_zeros((N, H, D))
        else:
            Si, Zi = state
        if len(Si) != N:
            raise ValueError("The batch size changed during iteration")

        # Update the state
        # before
        Zi += K
        Si += torch.einsum("nhd,nhm->nhdm", K, value)
        # after
        Zi = Zi + K
        Si = Si + torch.einsum("nhd,nhm->nhdm", K, value)
        # end

        # Read from it
        Z = 1.0 / (torch.einsum("nhd,nhd->nh", Q, Zi) + self.eps)
        V = torch.einsum("nhd,nhdm,nh->nhm", Q, Si, Z)
        return V.contiguous(), [Si, Zi]


class RecurrentAttentionLayer(nn.Module):
    """Projects to heads, attends, and projects back.

    Arguments
    ---------
        d_model: The size of a token
        n_heads: The number of heads
    """

    def __init__(self, d_model, n_heads):
        super().__init__()
        d_keys = d_model // n_heads
        self.inner_attention = RecurrentLinearAttention()
        self.query_projection = nn.Linear(d_model, d_keys * n_heads)
        self.key_projection = nn.Linear(d_model, d_keys * n_heads)
        self.value_projection = nn.Linear(d_model, d_keys * n_heads)
        self.out_projection = nn.Linear(d_keys * n_heads, d_model)
        self.n_heads = n_heads

    def step(self, x, state=None):
        """Attend with the next token, of shape (N, d_model)."""
        N = x.shape[0]
        query = self.query_projection(x).view(N, self.n_heads, -1)
        key = self.key_projection(x).view(N, self.n_heads, -1)
        value = self.value_projection(x).view(N, self.n_heads, -1)
        new_value, state = self.inner_attention(query, key, value, state)
        return self.out_projection(new_value.view(N, -1)), state

    def forward(self, x):
        """Attend with all tokens in turn, of shape (N, L, d_model)."""
        outputs, state = [], None
        for token in x.unbind(dim=1):
            y, state = self.step(token, state)
            outputs.append(y)
        return torch.stack(outputs, dim=1)
