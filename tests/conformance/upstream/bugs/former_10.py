"""The self-attention of a tutorial, in which every head has the width of the tokens."""

import torch
import torch.nn.functional as F
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, k, heads=8, mask=False):
        """
        :param k: the size of a token
        :param mask: whether a token sees only itself and the tokens before it
        """
        super().__init__()
        self.k, self.heads, self.mask = k, heads, mask
        self.tokeys = nn.Linear(k, k * heads, bias=False)
        self.toqueries = nn.Linear(k, k * heads, bias=False)
        self.tovalues = nn.Linear(k, k * heads, bias=False)
        self.unifyheads = nn.Linear(heads * k, k)

    def forward(self, x):
        b, t, k = x.size()
        h = self.heads
        queries = self.toqueries(x).view(b, t, h, k)
        keys = self.tokeys(x).view(b, t, h, k)
        values = self.tovalues(x).view(b, t, h, k)

        # fold the heads into the batch dimension
        keys = keys.transpose(1, 2).contiguous().view(b * h, t, k)
        queries = queries.transpose(1, 2).contiguous().view(b * h, t, k)
        values = values.transpose(1, 2).contiguous().view(b * h, t, k)
        queries = queries / (k ** (1 / 4))
        keys = keys / (k ** (1 / 4))

        # dot has size (b*h, t, t) and contains raw weights
        dot = torch.bmm(queries, keys.transpose(1, 2))
        if self.mask:
            # before
            indices = torch.triu_indices(t, t, offset=0)
            # after
            indices = torch.triu_indices(t, t, offset=1)
            # end
            dot[:, indices[0], indices[1]] = float("-inf")
        dot = F.softmax(dot, dim=2)

        out = torch.bmm(dot, values).view(b, h, t, k)
        out = out.transpose(1, 2).contiguous().view(b, t, h * k)
        return self.unifyheads(out)
