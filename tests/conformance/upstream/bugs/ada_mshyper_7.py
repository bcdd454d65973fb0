"""Hypergraph convolution with attention, for time series at several scales."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def glorot(tensor):
    bound = (6.0 / (tensor.size(-2) + tensor.size(-1))) ** 0.5
    tensor.data.uniform_(-bound, bound)


def degree(index, num_nodes, dtype):
    return torch.zeros(num_nodes, dtype=dtype).scatter_add_(
        0, index, torch.ones(index.size(0), dtype=dtype)
    )


def softmax(src, index, num_nodes):
    """Softmax over all entries of `src` with the same index. src: [E, B]."""
    index = index.unsqueeze(-1).expand_as(src)
    out = src.new_zeros(num_nodes, src.size(1))
    top = out.scatter_reduce(0, index, src.detach(), "amax", include_self=False)
    exp = (src - top.gather(0, index)).exp()
    total = out.scatter_add(0, index, exp).gather(0, index)
    return exp / (total + 1e-16)


class HypergraphConv(nn.Module):
    """Nodes are gathered into hyperedges, and hyperedges back into their nodes.

    x: [B, N, C], the time steps of all scales. hyperedge_index: [2, E]; the first row has nodes,
    the second row the hyperedges that they belong to.
    """

    def __init__(
        self,
        in_channels,
        out_channels,
        use_attention=True,
        negative_slope=0.2,
        dropout=0.1,
        bias=False,
    ):
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.use_attention = use_attention
        self.negative_slope = negative_slope
        self.dropout = dropout
        self.weight = nn.Parameter(torch.Tensor(in_channels, out_channels))
        self.att = nn.Parameter(torch.Tensor(1, 2 * out_channels))
        if bias:
            self.bias = nn.Parameter(torch.zeros(out_channels))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self):
        glorot(self.weight)
        glorot(self.att)

    def propagate(self, x, source, target, norm, alpha, size):
        """Sum the messages of the sources at the targets. x: [sources, B, C]."""
        messages = x[source] * alpha.unsqueeze(-1) * norm[target].view(-1, 1, 1)
        out = x.new_zeros(size, x.size(1), x.size(2))
        return out.index_add(0, target, messages)

    def forward(self, x, hyperedge_index):
        x1 = torch.matmul(x, self.weight).transpose(0, 1)  # [N, B, C]
        num_nodes = x1.size(0)
        num_edges = int(hyperedge_index[1].max()) + 1
        D = 1.0 / degree(hyperedge_index[0], num_nodes, x.dtype)
        D[float("inf") == D] = 0
        B = 1.0 / degree(hyperedge_index[1], num_edges, x.dtype)
        B[float("inf") == B] = 0

        if self.use_attention:
            x_i = torch.index_select(x1, dim=0, index=hyperedge_index[0])
            # a hyperedge is the sum of its nodes
            edge_sums = x1.new_zeros(num_edges, x1.size(1), x1.size(2))
            edge_sums = edge_sums.index_add(0, hyperedge_index[1], x_i)
            x_j = torch.index_select(edge_sums, dim=0, index=hyperedge_index[1])
            alpha = (torch.cat([x_i, x_j], dim=-1) * self.att).sum(dim=-1)
            alpha = F.leaky_relu(alpha, self.negative_slope)
            # attention of a hyperedge over its nodes
            # before
            alpha = softmax(alpha, hyperedge_index[0], num_nodes=num_nodes)
            # after
            alpha = softmax(alpha, hyperedge_index[1], num_nodes=num_edges)
            # end
            alpha = F.dropout(alpha, p=self.dropout, training=self.training)
        else:
            alpha = x.new_ones(hyperedge_index.size(1), x.size(0))

        out = self.propagate(x1, hyperedge_index[0], hyperedge_index[1], B, alpha, num_edges)
        out = self.propagate(out, hyperedge_index[1], hyperedge_index[0], D, alpha, num_nodes)
        out = out.transpose(0, 1)
        if self.bias is not None:
            out = out + self.bias
        return out

    def __repr__(self):
        return f"{self.__class__.__name__}({self.in_channels}, {self.out_channels})"
