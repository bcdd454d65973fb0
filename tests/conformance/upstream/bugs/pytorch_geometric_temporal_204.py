"""Forecasts traffic: a recurrent network on a graph, and attention to its states at all times (A3T-GCN)."""

import torch
from torch import nn


class GCNConv(nn.Module):
    """Average the neighbors of each node, itself among them, by their degrees."""

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__()
        self.lin = nn.Linear(in_channels, out_channels)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        nodes = torch.arange(x.shape[0], device=x.device)
        source, target = (torch.cat([ends, nodes]) for ends in edge_index)
        degree = torch.bincount(target, minlength=x.shape[0]).to(x.dtype)
        norm = (degree[source] * degree[target]) ** -0.5
        h = self.lin(x)
        return torch.zeros_like(h).index_add(0, target, norm[:, None] * h[source])


class TGCN(nn.Module):
    """A gated recurrent unit whose inputs are mixed on a graph."""

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__()
        self.conv_z = GCNConv(in_channels, out_channels)
        self.linear_z = nn.Linear(2 * out_channels, out_channels)
        self.conv_r = GCNConv(in_channels, out_channels)
        self.linear_r = nn.Linear(2 * out_channels, out_channels)
        self.conv_h = GCNConv(in_channels, out_channels)
        self.linear_h = nn.Linear(2 * out_channels, out_channels)

    def forward(self, X: torch.Tensor, edge_index: torch.Tensor, H: torch.Tensor) -> torch.Tensor:
        Z = torch.sigmoid(self.linear_z(torch.cat([self.conv_z(X, edge_index), H], dim=1)))
        R = torch.sigmoid(self.linear_r(torch.cat([self.conv_r(X, edge_index), H], dim=1)))
        H_tilde = torch.tanh(self.linear_h(torch.cat([self.conv_h(X, edge_index), H * R], dim=1)))
        return Z * H + (1 - Z) * H_tilde


class PeriodAttention(nn.Module):
    """Weigh the states of each node at all times."""

    def __init__(self, out_channels: int, periods: int):
        super().__init__()
        self.periods = periods
        # before
        self._attention = nn.Parameter(torch.rand(periods))
        # after
        self._hidden = nn.Linear(out_channels, out_channels)
        self._score = nn.Linear(out_channels, 1)
        # end

    def forward(self, H: torch.Tensor) -> torch.Tensor:
        """H: (periods, nodes, out_channels)."""
        # before
        scores = self._attention.view(self.periods, 1)
        # after
        scores = self._score(torch.tanh(self._hidden(H))).squeeze(-1)
        # end
        return torch.softmax(scores, dim=0)


class A3TGCN(nn.Module):
    r"""
    Args:
        in_channels (int): Number of input features.
        out_channels (int): Number of output features.
        periods (int): Number of time periods.
    """

    def __init__(self, in_channels: int, out_channels: int, periods: int):
        super().__init__()
        self.out_channels = out_channels
        self.periods = periods
        self._base_tgcn = TGCN(in_channels, out_channels)
        self._attention = PeriodAttention(out_channels, periods)

    def forward(self, X: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """
        X: Features of the nodes at all times, (nodes, in_channels, periods).
        edge_index: Sources and targets of the edges, (2, edges).
        Returns a state of each node, (nodes, out_channels).
        """
        H = X.new_zeros(X.shape[0], self.out_channels)
        states = []
        for period in range(self.periods):
            H = self._base_tgcn(X[:, :, period], edge_index, H)
            states.append(H)
        H = torch.stack(states)  # (periods, nodes, out_channels)
        return (self._attention(H)[:, :, None] * H).sum(dim=0)
