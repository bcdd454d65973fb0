"""The attention maps that a panoptic head makes of the objects that a detector found."""

import torch
import torch.nn.functional as F
from torch import nn


class MHAttentionMap(nn.Module):
    """A 2D attention module, which only returns the weights (no multiplication by values)."""

    def __init__(self, query_dim, hidden_dim, num_heads, dropout=0.0, bias=True):
        super().__init__()
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.dropout = nn.Dropout(dropout)
        self.q_linear = nn.Linear(query_dim, hidden_dim, bias=bias)
        self.k_linear = nn.Linear(query_dim, hidden_dim, bias=bias)
        nn.init.xavier_uniform_(self.k_linear.weight)
        nn.init.xavier_uniform_(self.q_linear.weight)
        self.normalize_fact = float(hidden_dim / self.num_heads) ** -0.5

    def forward(self, q, k, mask=None):
        """
        q: objects, of shape (batch, queries, query_dim). k: a feature map of shape (batch, query_dim, height, width).
        mask: true at padded pixels, of shape (batch, height, width).
        """
        q = self.q_linear(q)
        k = F.conv2d(k, self.k_linear.weight[:, :, None, None], self.k_linear.bias)
        head_dim = self.hidden_dim // self.num_heads
        qh = q.view(q.shape[0], q.shape[1], self.num_heads, head_dim)
        kh = k.view(k.shape[0], self.num_heads, head_dim, k.shape[-2], k.shape[-1])
        weights = torch.einsum("bqnc,bnchw->bqnhw", qh * self.normalize_fact, kh)

        if mask is not None:
            weights = weights.masked_fill(mask[:, None, None], float("-inf"))
        # before
        weights = F.softmax(weights.flatten(2), dim=-1).view(weights.size())
        # after
        weights = F.softmax(weights.flatten(3), dim=-1).view(weights.size())
        # end
        return self.dropout(weights)
