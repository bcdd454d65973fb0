"""The self-attention module of a Conformer, with relative sinusoidal positions."""

import math
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RelPositionalEncoding(nn.Module):
    def __init__(self, d_model: int = 512) -> None:
        super().__init__()
        self.d_model = d_model

    def forward(self, positions: Tensor) -> Tensor:
        """positions: (distances). Returns (1, distances, d_model)."""
        half = torch.arange(0, self.d_model, 2, device=positions.device)
        div_term = torch.exp(half * -(math.log(10000.0) / self.d_model))
        angles = positions.unsqueeze(1) * div_term
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).unsqueeze(0)


class RelativeMultiHeadAttention(nn.Module):
    def __init__(self, d_model: int = 512, num_heads: int = 16, dropout_p: float = 0.1) -> None:
        super().__init__()
        assert d_model % num_heads == 0, "d_model % num_heads should be zero."
        self.d_head = d_model // num_heads
        self.num_heads = num_heads
        self.query_proj = nn.Linear(d_model, d_model)
        self.key_proj = nn.Linear(d_model, d_model)
        self.value_proj = nn.Linear(d_model, d_model)
        self.pos_proj = nn.Linear(d_model, d_model, bias=False)
        self.dropout = nn.Dropout(p=dropout_p)
        self.u_bias = nn.Parameter(torch.empty(num_heads, self.d_head))
        self.v_bias = nn.Parameter(torch.empty(num_heads, self.d_head))
        nn.init.xavier_uniform_(self.u_bias)
        nn.init.xavier_uniform_(self.v_bias)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, inputs: Tensor, pos_embedding: Tensor, mask: Optional[Tensor]) -> Tensor:
        batch_size, time, _ = inputs.size()
        query = self.query_proj(inputs).view(batch_size, -1, self.num_heads, self.d_head)
        key = self.key_proj(inputs).view(batch_size, -1, self.num_heads, self.d_head)
        value = self.value_proj(inputs).view(batch_size, -1, self.num_heads, self.d_head)
        pos = self.pos_proj(pos_embedding.to(inputs.dtype)).view(-1, self.num_heads, self.d_head)

        content_score = torch.einsum("bihd,bjhd->bhij", query + self.u_bias, key)
        pos_score = torch.einsum("bihd,nhd->bhin", query + self.v_bias, pos)
        pos_score = self._relative_shift(pos_score)
        score = (content_score + pos_score) / math.sqrt(self.d_head)
        if mask is not None:
            score = score.masked_fill(mask.unsqueeze(1), float("-inf"))
        attn = self.dropout(F.softmax(score, -1))
        context = torch.einsum("bhij,bjhd->bihd", attn, value).reshape(batch_size, time, -1)
        return self.out_proj(context)

    def _relative_shift(self, pos_score: Tensor) -> Tensor:
        batch_size, num_heads, time, distances = pos_score.size()
        zeros = pos_score.new_zeros(batch_size, num_heads, time, 1)
        padded = torch.cat([zeros, pos_score], dim=-1)
        padded = padded.view(batch_size, num_heads, distances + 1, time)
        return padded[:, :, 1:].view_as(pos_score)[..., :time]


class MultiHeadedSelfAttentionModule(nn.Module):
    """Inputs: inputs (batch, time, dim), mask (batch, time, time), true at hidden frames."""

    def __init__(self, d_model: int, num_heads: int, dropout_p: float = 0.1) -> None:
        super().__init__()
        self.positional_encoding = RelPositionalEncoding(d_model)
        self.layer_norm = nn.LayerNorm(d_model)
        self.attention = RelativeMultiHeadAttention(d_model, num_heads, dropout_p)
        self.dropout = nn.Dropout(p=dropout_p)

    def forward(self, inputs: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        time = inputs.size(1)
        # before
        positions = torch.arange(time, device=inputs.device)
        # after
        positions = torch.arange(time - 1, -time, -1, device=inputs.device)
        # end
        outputs = self.attention(self.layer_norm(inputs), self.positional_encoding(positions), mask)
        return self.dropout(outputs)
