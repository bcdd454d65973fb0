"""The spatio-temporal transformer of a world model: attention within a frame, then over the time of each patch."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class PositionalEncoding(nn.Module):
    """Sines and cosines for the patches of a frame."""

    def __init__(self, d_model: int, max_len: int = 5000):
        super().__init__()
        position = torch.arange(0, max_len, dtype=torch.float32)[:, None]
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe, persistent=False)

    def forward(self, x):
        return x + self.pe[: x.shape[2]].to(x.dtype)


class MultiHeadAttention(nn.Module):
    """Self-attention over the last axis but one. All axes before it are batch axes."""

    def __init__(self, num_heads: int, qkv_features: int, dropout_rate: float):
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(qkv_features, qkv_features)
        self.key = nn.Linear(qkv_features, qkv_features)
        self.value = nn.Linear(qkv_features, qkv_features)
        self.out = nn.Linear(qkv_features, qkv_features)
        self.dropout = nn.Dropout(dropout_rate)

    def forward(self, x, mask=None):
        """The mask is True where a query may look, (queries, keys)."""
        q, k, v = (
            layer(x).unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)
            for layer in (self.query, self.key, self.value)
        )
        logits = q @ k.mT / math.sqrt(q.shape[-1])
        if mask is not None:
            logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
        weights = self.dropout(logits.softmax(dim=-1))
        return self.out((weights @ v).transpose(-3, -2).flatten(-2))


class STBlock(nn.Module):
    def __init__(self, dim: int, num_heads: int, dropout: float):
        super().__init__()
        self.spatial_norm = nn.LayerNorm(dim)
        self.spatial_attention = MultiHeadAttention(num_heads, dim, dropout)
        self.temporal_norm = nn.LayerNorm(dim)
        self.temporal_attention = MultiHeadAttention(num_heads, dim, dropout)
        self.ffn_norm = nn.LayerNorm(dim)
        self.ffn = nn.Linear(dim, dim)

    def forward(self, x):
        # --- Spatial attention ---
        z = self.spatial_norm(x)
        z = self.spatial_attention(z)
        x = x + z

        # --- Temporal attention ---
        x = x.transpose(1, 2)
        z = self.temporal_norm(x)
        # before
        z = self.temporal_attention(z)
        # after
        causal_mask = torch.ones(z.shape[-2], z.shape[-2], dtype=torch.bool, device=z.device).tril()
        z = self.temporal_attention(z, mask=causal_mask)
        # end
        x = x + z
        x = x.transpose(1, 2)

        # --- Feedforward ---
        z = self.ffn_norm(x)
        z = F.gelu(self.ffn(z))
        return x + z


class STTransformer(nn.Module):
    """
    Args:
        x: The tokens of a video, `(batch, frames, patches, in_dim)`. A frame is
            predicted from the frames up to it.
    """

    def __init__(
        self,
        in_dim: int,
        model_dim: int,
        out_dim: int,
        num_blocks: int,
        num_heads: int,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.embed = nn.Sequential(
            nn.LayerNorm(in_dim), nn.Linear(in_dim, model_dim), nn.LayerNorm(model_dim)
        )
        self.positions = PositionalEncoding(model_dim)
        self.blocks = nn.ModuleList(
            [STBlock(model_dim, num_heads, dropout) for _ in range(num_blocks)]
        )
        self.out = nn.Linear(model_dim, out_dim)

    def forward(self, x):
        x = self.positions(self.embed(x))
        for block in self.blocks:
            x = block(x)
        return self.out(x)  # (B, T, N, E)
