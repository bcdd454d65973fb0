"""Gated attention that pools the patches of a slide into one vector."""

import torch
from torch import nn


class AttentionMIL(nn.Module):
    def __init__(self, feature_size: int, hidden_size: int = 16):
        super().__init__()
        self.attention_v = nn.Sequential(nn.Linear(feature_size, hidden_size), nn.Tanh())
        self.attention_u = nn.Sequential(nn.Linear(feature_size, hidden_size), nn.Sigmoid())
        self.attention_w = nn.Linear(hidden_size, 1)

    def forward(self, feats: torch.Tensor, mask: torch.Tensor):
        """
        feats: the patches of each slide, of shape (batch, patches, feature_size).
        mask: of shape (batch, patches), True at real patches and False at padding.
        """
        attention = self.attention_w(self.attention_v(feats) * self.attention_u(feats))
        # before
        attention = attention * mask.unsqueeze(-1)
        # after
        attention = attention.masked_fill(~mask.bool().unsqueeze(-1), -torch.inf)
        # end
        attention = torch.softmax(attention, dim=1)
        return (attention * feats).sum(dim=1)
