"""Forecasts with MOMENT: series of any length are padded to the length of the context."""

import math
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


class RevIN(nn.Module):
    """Normalizes each series by the mean and the deviation of what was observed."""

    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def norm(self, x, input_mask):
        observed = input_mask.unsqueeze(1).to(x.dtype)
        count = observed.sum(dim=-1, keepdim=True).clamp(min=1)
        mean = (x * observed).sum(dim=-1, keepdim=True) / count
        variance = ((x - mean).square() * observed).sum(dim=-1, keepdim=True) / count
        stdev = (variance + self.eps).sqrt()
        return (x - mean) / stdev * observed, mean, stdev

    def denorm(self, x, mean, stdev):
        return x * stdev + mean


class EncoderBlock(nn.Module):
    def __init__(self, d_model: int, n_heads: int, d_ff: int, dropout: float):
        super().__init__()
        self.n_heads = n_heads
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.o = nn.Linear(d_model, d_model, bias=False)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.GELU(), nn.Linear(d_ff, d_model))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, attention_mask):
        batch, n_patches, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, n_patches, 3, self.n_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(
            ~attention_mask[:, None, None, :], torch.finfo(scores.dtype).min
        )
        context = F.softmax(scores, dim=-1) @ v
        x = x + self.dropout(self.o(context.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.ff(self.norm2(x)))


class MOMENT(nn.Module):
    """Encodes the patches of a series. `mask` hides patches that are to be reconstructed, and `input_mask` padding."""

    def __init__(
        self, task_name, seq_len, patch_len, forecast_horizon, d_model, n_heads, n_layers, dropout
    ):
        super().__init__()
        self.task_name = task_name
        self.patch_len = patch_len
        n_patches = seq_len // patch_len
        self.normalizer = RevIN()
        self.value_embedding = nn.Linear(patch_len, d_model, bias=False)
        if task_name == "reconstruction":
            self.mask_embedding = nn.Parameter(torch.zeros(d_model))
        self.position_embedding = nn.Parameter(torch.randn(n_patches, d_model) * 0.02)
        self.blocks = nn.ModuleList(
            [EncoderBlock(d_model, n_heads, 4 * d_model, dropout) for _ in range(n_layers)]
        )
        self.norm = nn.LayerNorm(d_model)
        n_out = patch_len if task_name == "reconstruction" else forecast_horizon
        n_in = d_model if task_name == "reconstruction" else n_patches * d_model
        self.head = nn.Linear(n_in, n_out)

    def encode(self, x, input_mask, mask=None):
        """Return the features of the patches, (batch, channels, patches, d_model). Those of padding are 0."""
        batch, n_channels, _ = x.shape
        observed = input_mask.unfold(-1, self.patch_len, self.patch_len).bool().any(dim=-1)

        x = self.value_embedding(x.unfold(-1, self.patch_len, self.patch_len))
        if mask is not None:
            shown = mask.unfold(-1, self.patch_len, self.patch_len).bool().all(dim=-1)
            x = torch.where(shown[:, None, :, None], x, self.mask_embedding)
        x = x + self.position_embedding
        x = x.flatten(0, 1)
        attention_mask = observed.repeat_interleave(n_channels, dim=0)
        for block in self.blocks:
            x = block(x, attention_mask)
        x = self.norm(x) * attention_mask.unsqueeze(-1)
        return x.unflatten(0, (batch, n_channels))

    def forward(
        self, x_enc, mask: Optional[torch.Tensor] = None, input_mask: Optional[torch.Tensor] = None
    ):
        if input_mask is None:
            input_mask = torch.ones_like(x_enc[:, 0], dtype=torch.long)
        x, mean, stdev = self.normalizer.norm(x_enc, input_mask)
        if self.task_name == "reconstruction":
            output = self.head(self.encode(x, input_mask, mask)).flatten(2)
        else:
            output = self.head(self.encode(x, input_mask).flatten(2))
        return self.normalizer.denorm(output, mean, stdev)


class MomentFMForecastNet(nn.Module):
    """The network of MomentFMForecaster.

    Parameters
    ----------
    seq_len : int, length of the context, a multiple of patch_len
    forecast_horizon : int, number of steps to predict
    """

    def __init__(
        self,
        seq_len=512,
        forecast_horizon=8,
        patch_len=8,
        d_model=64,
        n_heads=4,
        n_layers=2,
        dropout=0.1,
    ):
        super().__init__()
        self.model = MOMENT(
            "forecasting", seq_len, patch_len, forecast_horizon, d_model, n_heads, n_layers, dropout
        )

    def forward(self, y, input_mask=None):
        """
        y : (batch, channels, seq_len), short series are padded with zeros on the left
        input_mask : (batch, seq_len), 1 where there are values and 0 for padding
        """
        # before
        return self.model(x_enc=y, mask=input_mask)
        # after
        return self.model(x_enc=y, input_mask=input_mask)
        # end
