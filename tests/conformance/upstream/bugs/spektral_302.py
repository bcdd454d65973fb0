"""The readout of a graph network: a weighted sum of the nodes of each graph, with several graphs in a batch."""

import torch
import torch.nn.functional as F
from torch import nn


def segment_sum(x, segments, count):
    """Sum the rows of each segment."""
    out = x.new_zeros(count, *x.shape[1:])
    return out.index_add(0, segments, x)


class GlobalAttnSumPool(nn.Module):
    """Pools graphs with attention.

    All nodes of a batch stand in one tensor of shape (nodes, channels). A second tensor holds the
    number of the graph of each node, in order.
    """

    def __init__(self, channels):
        super().__init__()
        self.attn_kernel = nn.Parameter(torch.empty(channels, 1))
        nn.init.xavier_uniform_(self.attn_kernel)

    def forward(self, x, i=None):
        if i is None:
            i = torch.zeros(len(x), dtype=torch.long, device=x.device)
        n_graphs = int(i.max()) + 1
        scores = (x @ self.attn_kernel).squeeze(-1)
        # before
        attn_coeff = scores.softmax(dim=-1)
        # after
        top = torch.stack([scores[i == graph].max() for graph in range(n_graphs)])
        weights = (scores - top[i]).exp()
        attn_coeff = weights / segment_sum(weights, i, n_graphs)[i]
        # end
        return segment_sum(attn_coeff[:, None] * x, i, n_graphs)


class Readout(nn.Module):
    """Classifies graphs by their nodes."""

    def __init__(self, in_channels, channels, n_classes):
        super().__init__()
        self.dense = nn.Linear(in_channels, channels)
        self.pool = GlobalAttnSumPool(channels)
        self.classify = nn.Linear(channels, n_classes)

    def forward(self, x, i=None):
        x = F.elu(self.dense(x))
        return self.classify(self.pool(x, i))
