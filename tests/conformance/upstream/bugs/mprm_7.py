"""Attention modules of a network that labels point clouds from weak labels. Sub-clouds of a batch are stacked."""

import torch
import torch.nn as nn


class UnaryBlock(nn.Module):
    """A linear layer, a norm and a leaky ReLU for each point."""

    def __init__(self, in_dim, out_dim, use_norm=True):
        super().__init__()
        self.mlp = nn.Linear(in_dim, out_dim, bias=not use_norm)
        self.norm = nn.LayerNorm(out_dim) if use_norm else nn.Identity()
        self.leaky_relu = nn.LeakyReLU(0.1)

    def forward(self, x):
        return self.leaky_relu(self.norm(self.mlp(x)))


class PoolingBlock(nn.Module):
    """Features of the points of the next layer: the maximum of those of their neighbours."""

    def forward(self, x, pools):
        shadow = torch.cat([x, x.min() * torch.ones_like(x[:1])], dim=0)
        return shadow[pools].max(dim=1).values


class SpatialAttentionBlock(nn.Module):
    """
    Attention of the points of each sub-cloud, after the points were pooled.

    feature_dim: number of features
    reduction: the queries and keys have feature_dim // reduction features

    inputs is a dictionary of
        features: (points, feature_dim), the features of the stacked points of all sub-clouds
        pools: (pooled points, neighbours), the indices of the neighbours of each pooled point; the number of points
            stands for no neighbour
        stacked_length_in: (sub-clouds,), how many points each sub-cloud has
        stacked_length_out: (sub-clouds,), how many it has after pooling
    """

    def __init__(self, feature_dim: int, reduction: int = 2):
        super().__init__()
        self.pool = PoolingBlock()
        self.unary = UnaryBlock(feature_dim, feature_dim)
        self.conv_b = nn.Linear(feature_dim, feature_dim // reduction, bias=False)
        self.conv_c = nn.Linear(feature_dim, feature_dim // reduction, bias=False)
        self.conv_d = nn.Linear(feature_dim, feature_dim, bias=False)
        self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, inputs: dict) -> torch.Tensor:
        x = self.unary(self.pool(inputs["features"], inputs["pools"]))
        x1, x2, x3 = self.conv_b(x), self.conv_c(x), self.conv_d(x)

        # before
        stacked_length = inputs["stacked_length_in"]
        # after
        stacked_length = inputs["stacked_length_out"]
        # end
        out = []
        start_ind = 0
        for batch_length in stacked_length.tolist():
            end_ind = start_ind + batch_length
            query, key, value = x1[start_ind:end_ind], x2[start_ind:end_ind], x3[start_ind:end_ind]
            energy = query @ key.t() / query.shape[-1] ** 0.5
            out.append(torch.softmax(energy, dim=-1) @ value)
            start_ind = end_ind
        return self.gamma * torch.cat(out, dim=0) + x
