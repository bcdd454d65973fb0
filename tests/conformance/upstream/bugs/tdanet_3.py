"""The global attention of TDANet, a network that separates speakers: it attends over the frames of a mixture."""

import math

import torch
import torch.nn as nn


class LayerNorm(nn.Module):
    """Normalizes the channels of (batch, channels, frames)."""

    def __init__(self, channel_size):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channel_size))
        self.beta = nn.Parameter(torch.zeros(channel_size))

    def forward(self, x):
        mean = x.mean(dim=1, keepdim=True)
        var = (x - mean).square().mean(dim=1, keepdim=True)
        normed = (x - mean) / (var + 1e-8).sqrt()
        return self.gamma[:, None] * normed + self.beta[:, None]


class PositionalEncoding(nn.Module):
    def __init__(self, in_channels, max_length):
        super().__init__()
        pe = torch.zeros(max_length, in_channels)
        position = torch.arange(max_length).unsqueeze(1).float()
        div_term = torch.exp(
            torch.arange(0, in_channels, 2).float() * -(math.log(10000.0) / in_channels)
        )
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0), persistent=False)

    def forward(self, x):
        return x + self.pe[:, : x.size(1)]


class DropPath(nn.Module):
    """Drops the residual path of some samples in training."""

    def __init__(self, drop_prob):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x):
        if self.drop_prob == 0.0 or not self.training:
            return x
        keep = 1 - self.drop_prob
        mask = x.new_empty(x.shape[0], 1, 1).bernoulli_(keep)
        return x * mask / keep


class Mlp(nn.Module):
    def __init__(self, in_features, hidden_size, drop=0.1):
        super().__init__()
        self.fc1 = nn.Conv1d(in_features, hidden_size, 1, bias=False)
        self.dwconv = nn.Conv1d(hidden_size, hidden_size, 5, padding=2, groups=hidden_size)
        self.act = nn.ReLU()
        self.fc2 = nn.Conv1d(hidden_size, in_features, 1, bias=False)
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        x = self.act(self.dwconv(self.fc1(x)))
        return self.drop(self.fc2(self.drop(x)))


class MultiHeadAttention(nn.Module):
    def __init__(self, in_channels, n_head, dropout, max_length=10000):
        super().__init__()
        self.norm = LayerNorm(in_channels)
        self.pos_enc = PositionalEncoding(in_channels, max_length)
        # before
        self.attn = nn.MultiheadAttention(in_channels, n_head, dropout)
        # after
        self.attn = nn.MultiheadAttention(in_channels, n_head, dropout, batch_first=True)
        # end
        self.attn_in_norm = nn.LayerNorm(in_channels)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = self.norm(x).transpose(1, 2)  # B, T, C
        x = self.pos_enc(x)
        output, _ = self.attn(x, x, x, need_weights=False)
        output = self.attn_in_norm(x + self.dropout(output))
        return output.transpose(1, 2)


class GlobalAttention(nn.Module):
    """
    x: (batch, in_chan, frames), the features of a mixture at the coarsest scale
    """

    def __init__(self, in_chan, n_head=8, dropout=0.1, drop_path=0.1):
        super().__init__()
        self.attn = MultiHeadAttention(in_chan, n_head, dropout)
        self.mlp = Mlp(in_chan, in_chan * 2, drop=0.1)
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        x = x + self.drop_path(self.attn(x))
        x = x + self.drop_path(self.mlp(x))
        return x
