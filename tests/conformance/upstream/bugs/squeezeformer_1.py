"""The relative attention of a speech encoder."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RelPositionalEncoding(nn.Module):
    """Encodings of the distances from length - 1 down to 1 - length."""

    def __init__(self, d_model: int = 512) -> None:
        super().__init__()
        div_term = torch.exp(torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
        self.register_buffer("div_term", div_term, persistent=False)

    def forward(self, length: int) -> Tensor:
        position = torch.arange(length - 1, -length, -1, device=self.div_term.device)
        angles = position[:, None] * self.div_term
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


class RelativeMultiHeadAttention(nn.Module):
    """
    Args:
        d_model (int): The dimension of model
        num_heads (int): The number of attention heads.
        dropout_p (float): probability of dropout
    """

    def __init__(self, d_model: int = 512, num_heads: int = 16, dropout_p: float = 0.1) -> None:
        super().__init__()
        assert d_model % num_heads == 0, "d_model % num_heads should be zero."
        self.d_model = d_model
        self.d_head = d_model // num_heads
        self.num_heads = num_heads
        # before
        self.sqrt_dim = math.sqrt(d_model)
        # after
        self.sqrt_dim = math.sqrt(self.d_head)
        # end

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

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        pos_embedding: Tensor,
        mask: Tensor | None = None,
    ) -> Tensor:
        batch_size = value.size(0)
        query = self.query_proj(query).view(batch_size, -1, self.num_heads, self.d_head)
        key = self.key_proj(key).view(batch_size, -1, self.num_heads, self.d_head)
        value = self.value_proj(value).view(batch_size, -1, self.num_heads, self.d_head)
        pos_embedding = self.pos_proj(pos_embedding).view(-1, self.num_heads, self.d_head)

        content_score = torch.matmul((query + self.u_bias).transpose(1, 2), key.permute(0, 2, 3, 1))
        pos_score = torch.matmul(
            (query + self.v_bias).transpose(1, 2), pos_embedding.permute(1, 2, 0)
        )
        score = (content_score + self._relative_shift(pos_score)) / self.sqrt_dim

        if mask is not None:
            score = score.masked_fill(mask.unsqueeze(1), torch.finfo(score.dtype).min)
        attn = self.dropout(F.softmax(score, -1))

        context = torch.matmul(attn, value.transpose(1, 2)).transpose(1, 2)
        return self.out_proj(context.reshape(batch_size, -1, self.d_model))

    def _relative_shift(self, pos_score: Tensor) -> Tensor:
        batch_size, num_heads, seq_length1, seq_length2 = pos_score.size()
        pos_score = F.pad(pos_score, (1, 0))
        pos_score = pos_score.view(batch_size, num_heads, seq_length2 + 1, seq_length1)
        pos_score = pos_score[:, :, 1:].reshape(batch_size, num_heads, seq_length1, seq_length2)
        return pos_score[..., : seq_length2 // 2 + 1]


class MultiHeadedSelfAttentionModule(nn.Module):
    """
    Inputs: inputs, mask
        - **inputs** (batch, time, dim): Tensor containing input vector
        - **mask** (batch, 1, time2) or (batch, time1, time2): True at the indices to be masked
    """

    def __init__(self, d_model: int, num_heads: int, dropout_p: float = 0.1) -> None:
        super().__init__()
        self.positional_encoding = RelPositionalEncoding(d_model)
        self.attention = RelativeMultiHeadAttention(d_model, num_heads, dropout_p)
        self.dropout = nn.Dropout(p=dropout_p)

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        pos_embedding = self.positional_encoding(inputs.size(1)).to(inputs.dtype)
        outputs = self.attention(inputs, inputs, inputs, pos_embedding, mask)
        return self.dropout(outputs)
