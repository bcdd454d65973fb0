"""A graph attention layer on a list of edges."""

import torch
import torch.nn.functional as F
from torch import nn


def scatter_softmax(src, index, num_nodes):
    """Take the softmax of the entries of src that have the same index."""
    largest = src.new_full((num_nodes, src.size(1)), float("-inf"))
    largest = largest.scatter_reduce(0, index[:, None].expand_as(src), src.detach(), "amax")
    out = (src - largest[index]).exp()
    total = src.new_zeros(num_nodes, src.size(1)).index_add(0, index, out)
    return out / (total[index] + 1e-16)


class GATConv(nn.Module):
    def __init__(self, in_channels, out_channels, heads=1, negative_slope=0.2, dropout=0.0):
        super().__init__()
        self.out_channels = out_channels
        self.heads = heads
        self.negative_slope = negative_slope
        self.dropout = dropout
        self.weight = nn.Parameter(torch.empty(in_channels, heads * out_channels))
        self.att = nn.Parameter(torch.empty(1, heads, 2 * out_channels))
        self.bias = nn.Parameter(torch.zeros(heads * out_channels))
        nn.init.xavier_uniform_(self.weight)
        nn.init.xavier_uniform_(self.att)

    def forward(self, x, edge_index):
        """
        x: the features of the nodes, of shape (nodes, in_channels).
        edge_index: the source and the target of each edge, of shape (2, edges).
        """
        num_nodes = x.size(0)
        source, target = edge_index
        x = torch.mm(x, self.weight).view(-1, self.heads, self.out_channels)

        alpha = torch.cat([x[target], x[source]], dim=-1)
        alpha = (alpha * self.att).sum(dim=-1)
        alpha = F.leaky_relu(alpha, self.negative_slope)
        # before
        alpha = scatter_softmax(alpha, source, num_nodes)
        # after
        alpha = scatter_softmax(alpha, target, num_nodes)
        # end
        alpha = F.dropout(alpha, p=self.dropout, training=self.training)

        messages = x[source] * alpha.unsqueeze(-1)
        out = x.new_zeros(num_nodes, self.heads, self.out_channels)
        out = out.index_add(0, target, messages)
        return out.view(-1, self.heads * self.out_channels) + self.bias
