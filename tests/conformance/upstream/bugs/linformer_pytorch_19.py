"""Attention in linear time: keys and values are projected to a few places along the sequence."""

import torch
from torch import nn


def gen_causal_mask(input_size, dim_k, full_attention=False):
    """Return True where a query may look, of shape (input_size, dim_k)."""
    if full_attention:
        return (torch.triu(torch.ones(input_size, input_size)) == 1).transpose(0, 1)
    return (torch.triu(torch.ones(dim_k, input_size)) == 1).transpose(0, 1)


class LinearAttentionHead(nn.Module):
    """
    dim: size of the head.
    E_proj, F_proj: what projects keys and values along the sequence.
    causal_mask: where a query may look, or None.
    """

    def __init__(self, dim, dropout, E_proj, F_proj, causal_mask, full_attention=False):
        super().__init__()
        self.E = E_proj
        self.F = F_proj
        self.dim = dim
        self.dropout = nn.Dropout(dropout)
        self.full_attention = full_attention
        self.register_buffer("causal_mask", causal_mask, persistent=False)

    def forward(self, Q, K, V):
        K = K.transpose(1, 2)
        if not self.full_attention:
            K = self.E(K)
        Q = torch.matmul(Q, K)

        P_bar = Q / self.dim**0.5
        if self.causal_mask is not None:
            # before
            P_bar = P_bar.masked_fill_(~self.causal_mask, -1e10)
            # after
            P_bar = P_bar.masked_fill_(~self.causal_mask, float("-inf"))
            # end
        P_bar = self.dropout(P_bar.softmax(dim=-1))

        if not self.full_attention:
            V = self.F(V.transpose(1, 2)).transpose(1, 2)
        return torch.matmul(P_bar, V)


class MHAttention(nn.Module):
    """Heads next to each other, with shared or separate projections along the sequence."""

    def __init__(
        self,
        input_size,
        channels,
        nhead,
        dim_k,
        dropout=0.0,
        parameter_sharing="layerwise",
        causal=True,
    ):
        super().__init__()
        self.heads = nn.ModuleList()
        dim = channels // nhead
        mask = gen_causal_mask(input_size, dim_k) if causal else None

        E_proj = nn.Linear(input_size, dim_k)
        F_proj = nn.Linear(input_size, dim_k) if parameter_sharing == "none" else E_proj
        for _ in range(nhead):
            if parameter_sharing == "none":
                E_proj, F_proj = nn.Linear(input_size, dim_k), nn.Linear(input_size, dim_k)
            self.heads.append(LinearAttentionHead(dim, dropout, E_proj, F_proj, mask))
        self.to_q = nn.ModuleList([nn.Linear(channels, dim, bias=False) for _ in range(nhead)])
        self.to_k = nn.ModuleList([nn.Linear(channels, dim, bias=False) for _ in range(nhead)])
        self.to_v = nn.ModuleList([nn.Linear(channels, dim, bias=False) for _ in range(nhead)])
        self.w_o = nn.Linear(dim * nhead, channels)

    def forward(self, x):
        outputs = []
        for index, head in enumerate(self.heads):
            Q = self.to_q[index](x)
            K = self.to_k[index](x)
            V = self.to_v[index](x)
            outputs.append(head(Q, K, V))
        return self.w_o(torch.cat(outputs, dim=-1))
