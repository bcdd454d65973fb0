"""Graph attention on the edges of a graph only, with a sum over the edges instead of a softmax over all nodes (pyGAT)."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class SpGraphAttentionLayer(nn.Module):
    """
    Sparse version of the layer of a graph attention network.

    in_features: size of a node. out_features: size of an output. dropout: of the attention weights.
    alpha: slope of the leaky rectifier. concat: whether another layer follows, so that there is an activation.
    """

    def __init__(self, in_features, out_features, dropout=0.0, alpha=0.2, concat=True):
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.alpha = alpha
        self.concat = concat

        self.W = nn.Parameter(torch.zeros(size=(in_features, out_features)))
        nn.init.xavier_normal_(self.W.data, gain=1.414)
        self.a = nn.Parameter(torch.zeros(size=(1, 2 * out_features)))
        nn.init.xavier_normal_(self.a.data, gain=1.414)

        self.dropout = nn.Dropout(dropout)
        self.leakyrelu = nn.LeakyReLU(self.alpha)

    def forward(self, input, adj):
        """input: (nodes, in_features). adj: not zero at the neighbors of each node, and at itself, (nodes, nodes)."""
        N = input.size()[0]
        edge = adj.nonzero().t()

        h = torch.mm(input, self.W)  # N x out

        # Self-attention on the nodes - shared attention mechanism
        edge_h = torch.cat((h[edge[0, :], :], h[edge[1, :], :]), dim=1).t()  # 2*out x E
        # before
        edge_e = torch.exp(-self.leakyrelu(self.a.mm(edge_h).squeeze(0)))  # E
        # after
        edge_e = self.leakyrelu(self.a.mm(edge_h).squeeze(0))
        e_rowmax = edge_e.new_full((N,), -float("inf"))
        e_rowmax = e_rowmax.scatter_reduce(0, edge[0], edge_e.detach(), "amax")
        edge_e = torch.exp(edge_e - e_rowmax[edge[0]])  # E
        # end

        e_rowsum = torch.zeros(N, dtype=h.dtype, device=h.device).index_add(0, edge[0], edge_e)
        edge_e = self.dropout(edge_e)

        h_prime = torch.zeros_like(h).index_add(0, edge[0], edge_e[:, None] * h[edge[1]])
        h_prime = h_prime.div(e_rowsum[:, None])  # N x out

        if self.concat:
            # if this layer is not last layer,
            return F.elu(h_prime)
        # if this layer is last layer,
        return h_prime

    def __repr__(self):
        return f"{self.__class__.__name__} ({self.in_features} -> {self.out_features})"
