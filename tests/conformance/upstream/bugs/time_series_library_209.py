"""Attention between the low frequencies of two time series, with weights for each frequency."""

import torch
from torch import nn


def get_frequency_modes(seq_len, modes=64):
    """Return the numbers of the lowest frequencies."""
    return list(range(min(modes, seq_len // 2)))


class FourierCrossAttention(nn.Module):
    def __init__(self, in_channels, out_channels, seq_len_q, seq_len_kv, modes=64, num_heads=8):
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.index_q = get_frequency_modes(seq_len_q, modes)
        self.index_kv = get_frequency_modes(seq_len_kv, modes)
        self.scale = 1 / (in_channels * out_channels)
        # before
        shape = (8, in_channels // 8, out_channels // 8, len(self.index_q))
        # after
        shape = (num_heads, in_channels // num_heads, out_channels // num_heads, len(self.index_q))
        # end
        self.weights1 = nn.Parameter(self.scale * torch.rand(*shape))
        self.weights2 = nn.Parameter(self.scale * torch.rand(*shape))

    def forward(self, q, k, v):
        """All inputs are of shape (batch, length, heads, channels of a head)."""
        length = q.shape[1]
        xq, xk, xv = (x.permute(0, 2, 3, 1) for x in (q, k, v))
        xq_ft = torch.fft.rfft(xq, dim=-1)[..., self.index_q]
        xk_ft = torch.fft.rfft(xk, dim=-1)[..., self.index_kv]
        xv_ft = torch.fft.rfft(xv, dim=-1)[..., self.index_kv]

        xqk_ft = torch.einsum("bhex,bhey->bhxy", xq_ft, xk_ft)
        xqk_ft = torch.complex(xqk_ft.real.tanh(), xqk_ft.imag.tanh())
        xqkv_ft = torch.einsum("bhxy,bhey->bhex", xqk_ft, xv_ft)
        weights = torch.complex(self.weights1, self.weights2)
        xqkvw = torch.einsum("bhex,heox->bhox", xqkv_ft, weights)

        out_ft = xqkvw.new_zeros(*xqkvw.shape[:-1], length // 2 + 1)
        out_ft[..., self.index_q] = xqkvw
        out = torch.fft.irfft(out_ft / self.in_channels / self.out_channels, n=length)
        return out.permute(0, 3, 1, 2)


class AutoCorrelationLayer(nn.Module):
    """Attends from one series to another of any length, with heads."""

    def __init__(self, d_model, n_heads, seq_len_q, seq_len_kv, modes=64):
        super().__init__()
        self.n_heads = n_heads
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection = nn.Linear(d_model, d_model)
        self.out_projection = nn.Linear(d_model, d_model)
        self.inner_correlation = FourierCrossAttention(
            d_model, d_model, seq_len_q, seq_len_kv, modes, num_heads=n_heads
        )

    def forward(self, queries, keys, values):
        B, L, _ = queries.shape
        queries = self.query_projection(queries).view(B, L, self.n_heads, -1)
        keys = self.key_projection(keys).view(B, keys.shape[1], self.n_heads, -1)
        values = self.value_projection(values).view(B, values.shape[1], self.n_heads, -1)
        out = self.inner_correlation(queries, keys, values)
        return self.out_projection(out.reshape(B, L, -1))
