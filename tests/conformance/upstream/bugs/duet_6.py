"""Attention between the channels of time series: a learned distance of their spectra says which ones belong together."""

import math

import torch
import torch.nn as nn


class Mahalanobis_mask(nn.Module):
    def __init__(self, input_size):
        super().__init__()
        frequency_size = input_size // 2 + 1
        self.A = nn.Parameter(torch.randn(frequency_size, frequency_size) / frequency_size)

    def calculate_prob_distance(self, X):
        """Return how likely each channel is a neighbor of each other one, of shape (batch, channels, channels)."""
        XF = torch.abs(torch.fft.rfft(X, dim=-1))
        X1 = XF.unsqueeze(2)
        X2 = XF.unsqueeze(1)

        # B x C x C x D
        diff = X1 - X2

        # before
        temp = torch.einsum("dd,bxcd->bxcd", self.A, diff)
        # after
        temp = torch.einsum("dk,bxck->bxcd", self.A, diff)
        # end

        dist = torch.einsum("bxcd,bxcd->bxc", temp, temp)
        return torch.exp(-dist)

    def forward(self, X):
        # X: the series, of shape (batch, channels, steps)
        return self.calculate_prob_distance(X).unsqueeze(1)


class FullAttention(nn.Module):
    def __init__(self, attention_dropout=0.1, output_attention=False):
        super().__init__()
        self.output_attention = output_attention
        self.dropout = nn.Dropout(attention_dropout)

    def forward(self, queries, keys, values, attn_mask):
        B, L, H, E = queries.shape
        scale = 1.0 / math.sqrt(E)
        scores = torch.einsum("blhe,bshe->bhls", queries, keys)
        # a neighbor of probability p has p times the weight
        scores = scale * scores + torch.log(attn_mask.clamp(min=1e-6))
        A = self.dropout(torch.softmax(scores, dim=-1))
        V = torch.einsum("bhls,bshd->blhd", A, values)
        return (V.contiguous(), A) if self.output_attention else (V.contiguous(), None)


class ChannelEncoderLayer(nn.Module):
    """
    x: the features of the channels, of shape (batch, channels, d_model)
    series: their values at each step, of shape (batch, channels, seq_len)
    """

    def __init__(self, seq_len, d_model, n_heads, d_ff=None, dropout=0.1):
        super().__init__()
        d_ff = d_ff or 2 * d_model
        self.n_heads = n_heads
        self.mask_generator = Mahalanobis_mask(seq_len)
        self.inner_attention = FullAttention(attention_dropout=dropout)
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection = nn.Linear(d_model, d_model)
        self.out_projection = nn.Linear(d_model, d_model)
        self.conv1 = nn.Conv1d(in_channels=d_model, out_channels=d_ff, kernel_size=1)
        self.conv2 = nn.Conv1d(in_channels=d_ff, out_channels=d_model, kernel_size=1)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, series):
        B, L, _ = x.shape
        H = self.n_heads
        queries = self.query_projection(x).view(B, L, H, -1)
        keys = self.key_projection(x).view(B, L, H, -1)
        values = self.value_projection(x).view(B, L, H, -1)
        new_x, attn = self.inner_attention(queries, keys, values, self.mask_generator(series))
        x = x + self.dropout(self.out_projection(new_x.view(B, L, -1)))
        y = x = self.norm1(x)
        y = self.dropout(torch.relu(self.conv1(y.transpose(-1, 1))))
        y = self.dropout(self.conv2(y).transpose(-1, 1))
        return self.norm2(x + y)
