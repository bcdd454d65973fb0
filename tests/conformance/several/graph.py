"""Attention between the nodes of a graph along its edges."""

import torch
import torch.nn.functional as F
from torch import nn


class GraphTransformerLayer(nn.Module):
    def __init__(self, in_dim, out_dim, num_heads, dropout=0.1):
        super().__init__()
        self.d_k = out_dim // num_heads
        self.num_heads = num_heads
        self.q = nn.Linear(in_dim, out_dim, bias=False)
        self.k = nn.Linear(in_dim, out_dim, bias=False)
        self.v = nn.Linear(in_dim, out_dim, bias=False)
        self.o = nn.Linear(out_dim, out_dim)
        self.feat_drop = nn.Dropout(dropout)

    def forward(self, h, adj):
        """
        :param h: node features, (batch, nodes, in_dim)
        :param adj: adjacency matrix, (batch, nodes, nodes), 1 where there is an edge
        """
        bs, n, _ = h.size()
        q = self.q(h).view(bs, n, self.num_heads, self.d_k).transpose(1, 2)
        k = self.k(h).view(bs, n, self.num_heads, self.d_k).transpose(1, 2)
        v = self.v(h).view(bs, n, self.num_heads, self.d_k).transpose(1, 2)
        score = q @ k.transpose(-1, -2) / self.d_k**0.5
        score = score.masked_fill(adj.unsqueeze(1) == 0, float("-inf"))
        alpha = F.softmax(score, dim=-1)
        alpha = self.feat_drop(alpha)
        h = (alpha @ v).transpose(1, 2).reshape(bs, n, -1)
        return self.o(h)
