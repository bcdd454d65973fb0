"""Alignment of one signal with another, whose lengths differ within a batch."""

import torch
import torch.nn.functional as F
from torch import nn


class Alignment(nn.Module):
    def __init__(self, query_dim, y_dim):
        super().__init__()
        self.linear = nn.Linear(query_dim, y_dim)

    def forward(self, query, y, n_wins_y):
        """
        query: (batch, windows, query_dim). y: (batch, windows of y, y_dim).
        n_wins_y: the number of windows of each y.
        """
        att = torch.bmm(self.linear(query), y.transpose(2, 1)) / y.shape[-1] ** 0.5
        mask = torch.arange(att.shape[2], device=att.device)[None, :] < n_wins_y[:, None]
        mask = mask.unsqueeze(1).expand(-1, att.shape[1], -1)
        # before
        sim = F.softmax(att, dim=2)
        sim = sim.masked_fill(~mask, float("-Inf"))
        # after
        att = att.masked_fill(~mask, float("-Inf"))
        sim = F.softmax(att, dim=2)
        # end
        y = torch.bmm(sim, y)
        return y, sim
