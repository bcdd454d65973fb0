"""Pools the history of an agent's observations: the last one, the mean, the maximum and an attention."""

import torch
from torch import nn


class TemporalLastPooling(nn.Module):
    def forward(self, features):
        return features[:, -1:, :]


class TemporalAvgPooling(nn.Module):
    def forward(self, features):
        return features.mean(1, keepdim=True)


class TemporalMaxPooling(nn.Module):
    def forward(self, features):
        return features.max(1, keepdim=True)[0]


class TemporalAttentionPooling(nn.Module):
    def __init__(self, features_in, kernel_size=1):
        super().__init__()
        self.features_in = features_in
        self.attention_pooling = nn.Sequential(
            nn.Conv1d(features_in, 1, kernel_size=kernel_size),
            # before
            nn.Softmax(dim=1),
            # after
            nn.Softmax(dim=2),
            # end
        )

    def forward(self, features):
        x_a = features.transpose(1, 2)
        x_attn = self.attention_pooling(x_a).transpose(1, 2)
        return (features * x_attn).sum(1, keepdim=True)


class LamaPooling(nn.Module):
    """features: (batch, history_len, features_in). Returns (batch, 4 * features_in)."""

    def __init__(self, features_in):
        super().__init__()
        self.features_in = features_in
        self.groups = nn.ModuleList(
            [
                TemporalLastPooling(),
                TemporalAvgPooling(),
                TemporalMaxPooling(),
                TemporalAttentionPooling(features_in),
            ]
        )

    def forward(self, features):
        batch_size, history_len, feature_size = features.shape
        x = torch.cat([group(features) for group in self.groups], dim=1)
        return x.view(batch_size, -1)
