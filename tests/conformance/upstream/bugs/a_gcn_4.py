"""A graph convolution whose adjacency is an attention of the nodes to each other."""

import torch
from torch import nn


class AttentionGraphConvolution(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.w_theta = nn.Linear(in_features, in_features, bias=False)
        self.w_phi = nn.Linear(in_features, in_features, bias=False)
        self.weight = nn.Linear(in_features, out_features, bias=False)

    def adjacency(self, x):
        theta, phi = self.w_theta(x), self.w_phi(x)
        scores = torch.matmul(theta, phi.transpose(1, 2)) / x.shape[-1] ** 0.5
        return torch.softmax(scores, dim=-1)

    def forward(self, x):
        """x: (batch, nodes, in_features)."""
        # before
        adj = self.adjacency(x).detach()
        # after
        adj = self.adjacency(x)
        # end
        support = self.weight(x)
        return torch.relu(torch.matmul(adj, support))
