"""The window attention of a vision transformer, as one function."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def window_attention(
    input: Tensor,
    qkv: nn.Linear,
    proj: nn.Linear,
    relative_position_bias: Tensor,
    window_size: int,
    num_heads: int,
    attention_dropout: float = 0.0,
    dropout: float = 0.0,
    training: bool = True,
):
    B, H, W, C = input.shape
    ws = window_size

    # partition windows
    x = input.view(B, H // ws, ws, W // ws, ws, C)
    x = x.permute(0, 1, 3, 2, 4, 5).reshape(-1, ws * ws, C)

    # multi-head attention
    x = qkv(x).reshape(x.size(0), x.size(1), 3, num_heads, C // num_heads).permute(2, 0, 3, 1, 4)
    q, k, v = x[0], x[1], x[2]
    q = q * (C // num_heads) ** -0.5
    attn = q.matmul(k.transpose(-2, -1)) + relative_position_bias
    attn = F.softmax(attn, dim=-1)
    # before
    attn = F.dropout(attn, p=attention_dropout)
    # after
    attn = F.dropout(attn, p=attention_dropout, training=training)
    # end
    x = attn.matmul(v).transpose(1, 2).reshape(-1, ws * ws, C)
    x = proj(x)
    # before
    x = F.dropout(x, p=dropout)
    # after
    x = F.dropout(x, p=dropout, training=training)
    # end

    # reverse windows
    x = x.view(B, H // ws, W // ws, ws, ws, C)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(B, H, W, C)


class WindowAttention(nn.Module):
    """input: feature maps of shape (batch, height, width, dim), the sides multiples of the window's"""

    def __init__(self, dim, window_size, num_heads, attention_dropout=0.0, dropout=0.0):
        super().__init__()
        self.window_size = window_size
        self.num_heads = num_heads
        self.attention_dropout = attention_dropout
        self.dropout = dropout
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)
        span = 2 * window_size - 1
        self.relative_position_bias_table = nn.Parameter(torch.zeros(span * span, num_heads))
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)
        side = torch.arange(window_size)
        coords = torch.stack(torch.meshgrid(side, side, indexing="ij")).flatten(1)
        relative = coords[:, :, None] - coords[:, None, :] + window_size - 1
        self.register_buffer("relative_position_index", relative[0] * span + relative[1])

    def forward(self, x: Tensor) -> Tensor:
        bias = self.relative_position_bias_table[self.relative_position_index]
        return window_attention(
            x,
            self.qkv,
            self.proj,
            bias.permute(2, 0, 1).contiguous().unsqueeze(0),
            self.window_size,
            self.num_heads,
            attention_dropout=self.attention_dropout,
            dropout=self.dropout,
            training=self.training,
        )
