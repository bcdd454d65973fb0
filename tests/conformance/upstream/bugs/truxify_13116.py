"""Forecasts traffic on a graph of roads: attention between neighbors at each time, then a network over time."""

import torch
import torch.nn.functional as F
from torch import nn


def segment_softmax(scores, index, size):
    """Return the softmax of (edges, heads) among the edges with the same index."""
    top = scores.new_full((size, scores.shape[1]), float("-inf"))
    top = top.scatter_reduce(0, index[:, None].expand_as(scores), scores, "amax")
    weights = (scores - top[index]).exp()
    total = scores.new_zeros(size, scores.shape[1]).index_add(0, index, weights)
    return weights / total[index]


class GraphAttentionLayer(nn.Module):
    """
    Args:
        in_features: Size of a node.
        out_features: Size of a head.
        heads: Number of heads.
        negative_slope: Of the leaky rectifier.
    """

    def __init__(
        self, in_features: int, out_features: int, heads: int = 2, negative_slope: float = 0.2
    ):
        super().__init__()
        self.heads = heads
        self.out_features = out_features
        self.negative_slope = negative_slope
        self.lin = nn.Linear(in_features, heads * out_features, bias=False)
        self.att_src = nn.Parameter(torch.randn(heads, out_features) * 0.3)
        self.att_dst = nn.Parameter(torch.randn(heads, out_features) * 0.3)
        self.bias = nn.Parameter(torch.zeros(heads * out_features))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """x: (nodes, in_features). edge_index: sources and targets of the edges, (2, edges)."""
        nodes = x.shape[0]
        source, target = edge_index
        h = self.lin(x).view(nodes, self.heads, self.out_features)
        alpha = (h * self.att_src).sum(-1)[source] + (h * self.att_dst).sum(-1)[target]
        alpha = segment_softmax(F.leaky_relu(alpha, self.negative_slope), target, nodes)
        out = torch.zeros_like(h).index_add(0, target, alpha[..., None] * h[source])
        return out.flatten(1) + self.bias


class SpatialTemporalGAT(nn.Module):
    """
    Args:
        in_features: Size of a node at one time.
        hidden: Size of a head.
        heads: Number of heads.
        horizon: How many steps are forecast.
    """

    def __init__(self, in_features: int = 5, hidden: int = 8, heads: int = 2, horizon: int = 3):
        super().__init__()
        self.spatial_layers = nn.ModuleList(
            [
                GraphAttentionLayer(in_features, hidden, heads),
                GraphAttentionLayer(heads * hidden, hidden, heads),
            ]
        )
        self.temporal = nn.GRU(heads * hidden, hidden, batch_first=True)
        self.head = nn.Linear(hidden, horizon)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """
        x: (batch, nodes, time, features). edge_index: (2, edges), the same at all times.
        Returns the forecast of each node, of shape (batch, nodes, horizon).
        """
        batch_size, num_nodes, time_steps, features = x.shape
        graphs = batch_size * time_steps
        x = x.permute(0, 2, 1, 3).contiguous().view(graphs * num_nodes, features)
        # before
        for spatial_layer in self.spatial_layers:
            x = F.elu(spatial_layer(x, edge_index))
        # after
        offsets = torch.arange(graphs, device=x.device) * num_nodes
        edge_index = (edge_index[:, None, :] + offsets[None, :, None]).flatten(1)
        for spatial_layer in self.spatial_layers:
            x = F.elu(spatial_layer(x, edge_index))
        # end
        x = x.view(batch_size, time_steps, num_nodes, -1).transpose(1, 2).flatten(0, 1)
        _, last = self.temporal(x)
        return self.head(last[0]).view(batch_size, num_nodes, -1)
