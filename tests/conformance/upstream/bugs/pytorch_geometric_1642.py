"""A graph attention layer that scores sources and targets by vectors of their own."""

import torch
import torch.nn.functional as F
from torch import nn


def softmax(src, index, num_nodes):
    out = (src - src.max().detach()).exp()
    total = src.new_zeros(num_nodes, src.size(1)).index_add(0, index, out)
    return out / (total[index] + 1e-16)


class GATConv(nn.Module):
    def __init__(self, in_channels, out_channels, heads=1, negative_slope=0.2, dropout=0.0):
        super().__init__()
        self.heads = heads
        self.out_channels = out_channels
        self.negative_slope = negative_slope
        self.dropout = dropout
        self.lin_l = nn.Linear(in_channels, heads * out_channels, bias=False)
        self.lin_r = self.lin_l
        self.att_l = nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_r = nn.Parameter(torch.empty(1, heads, out_channels))
        self.bias = nn.Parameter(torch.zeros(heads * out_channels))
        nn.init.xavier_uniform_(self.att_l)
        nn.init.xavier_uniform_(self.att_r)

    def forward(self, x, edge_index):
        """
        x: the features of all nodes, or a pair of the features of the sources and of the targets.
        edge_index: the source and the target of each edge, of shape (2, edges).
        """
        H, C = self.heads, self.out_channels
        if isinstance(x, torch.Tensor):
            x_l = x_r = self.lin_l(x).view(-1, H, C)
            # before
            alpha_l = alpha_r = (x_l * self.att_l).sum(dim=-1)
            # after
            alpha_l = (x_l * self.att_l).sum(dim=-1)
            alpha_r = (x_r * self.att_r).sum(dim=-1)
            # end
        else:
            x_l, x_r = self.lin_l(x[0]).view(-1, H, C), self.lin_r(x[1]).view(-1, H, C)
            alpha_l = (x_l * self.att_l).sum(dim=-1)
            alpha_r = (x_r * self.att_r).sum(dim=-1)

        source, target = edge_index
        alpha = F.leaky_relu(alpha_l[source] + alpha_r[target], self.negative_slope)
        alpha = softmax(alpha, target, x_r.size(0))
        alpha = F.dropout(alpha, p=self.dropout, training=self.training)
        out = torch.zeros_like(x_r).index_add(0, target, x_l[source] * alpha.unsqueeze(-1))
        return out.view(-1, H * C) + self.bias
