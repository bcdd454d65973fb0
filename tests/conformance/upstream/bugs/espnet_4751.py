"""Multi-head attention with relative positions for the encoder of a transducer."""

import math
from typing import Optional

import torch


class RelPositionMultiHeadedAttention(torch.nn.Module):
    """RelPositionMultiHeadedAttention definition.

    Args:
        num_heads: Number of attention heads.
        embed_size: Embedding size.
        dropout_rate: Dropout rate.
        simplified_attention_score: Whether the score of positions is a linear layer of the keys.
    """

    def __init__(
        self,
        num_heads: int,
        embed_size: int,
        dropout_rate: float = 0.0,
        simplified_attention_score: bool = False,
    ) -> None:
        super().__init__()

        self.d_k, remaining = divmod(embed_size, num_heads)
        self.num_heads = num_heads
        assert remaining == 0, f"embed_size ({embed_size}) must be divisible by {num_heads}."

        self.linear_q = torch.nn.Linear(embed_size, embed_size)
        self.linear_k = torch.nn.Linear(embed_size, embed_size)
        self.linear_v = torch.nn.Linear(embed_size, embed_size)
        self.linear_out = torch.nn.Linear(embed_size, embed_size)

        self.simplified_attention_score = simplified_attention_score
        if simplified_attention_score:
            self.linear_pos = torch.nn.Linear(embed_size, num_heads)
        else:
            self.linear_pos = torch.nn.Linear(embed_size, embed_size, bias=False)
            self.pos_bias_u = torch.nn.Parameter(torch.empty(num_heads, self.d_k))
            self.pos_bias_v = torch.nn.Parameter(torch.empty(num_heads, self.d_k))
            torch.nn.init.xavier_uniform_(self.pos_bias_u)
            torch.nn.init.xavier_uniform_(self.pos_bias_v)

        self.dropout = torch.nn.Dropout(p=dropout_rate)

    def rel_shift(self, x: torch.Tensor) -> torch.Tensor:
        """Line up the scores of distances with the keys.

        Args:
            x: Scores of the distances T - 1 ... 1 - T. (B, H, T, 2 * T - 1)

        Returns:
            : Scores of the keys. (B, H, T, T)
        """
        batch_size, n_heads, time1, n = x.shape
        time2 = (n + 1) // 2

        x = torch.nn.functional.pad(x, (1, 0)).view(batch_size, n_heads, n + 1, time1)
        return x[:, :, 1:].reshape(batch_size, n_heads, time1, n)[..., :time2]

    def compute_attention_score(
        self, query: torch.Tensor, key: torch.Tensor, pos_enc: torch.Tensor
    ) -> torch.Tensor:
        """Attention score. query, key: (B, H, T, d_k); pos_enc: (1, 2 * T - 1, size)."""
        if self.simplified_attention_score:
            score = self.rel_shift(
                self.linear_pos(pos_enc)
                .transpose(1, 2)
                .unsqueeze(2)
                .repeat(query.size(0), 1, query.size(2), 1)
            )
            return torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.d_k) + score

        p = self.linear_pos(pos_enc).view(pos_enc.size(0), -1, self.num_heads, self.d_k)
        q_with_bias_u = query + self.pos_bias_u.unsqueeze(1)
        q_with_bias_v = query + self.pos_bias_v.unsqueeze(1)

        matrix_ac = torch.matmul(q_with_bias_u, key.transpose(-2, -1))
        matrix_bd = self.rel_shift(torch.matmul(q_with_bias_v, p.permute(0, 2, 3, 1)))
        return (matrix_ac + matrix_bd) / math.sqrt(self.d_k)

    def forward_attention(
        self,
        value: torch.Tensor,
        scores: torch.Tensor,
        mask: torch.Tensor,
        chunk_mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """Compute attention context vector.

        Args:
            value: Transformed value. (B, H, T_2, d_k)
            scores: Attention score. (B, H, T_1, T_2)
            mask: Source mask, True at padding. (B, T_2)
            chunk_mask: Chunk mask, True where a frame must not be seen. (T_1, T_2)
        """
        batch_size = scores.size(0)
        mask = mask.unsqueeze(1).unsqueeze(2)
        if chunk_mask is not None:
            # before
            mask = chunk_mask.unsqueeze(0).unsqueeze(1) & mask
            # after
            mask = chunk_mask.unsqueeze(0).unsqueeze(1) | mask
            # end
        scores = scores.masked_fill(mask, float("-inf"))
        self.attn = torch.softmax(scores, dim=-1).masked_fill(mask, 0.0)

        attn_output = torch.matmul(self.dropout(self.attn), value)
        attn_output = attn_output.transpose(1, 2).reshape(batch_size, -1, self.num_heads * self.d_k)
        return self.linear_out(attn_output)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        pos_enc: torch.Tensor,
        mask: torch.Tensor,
        chunk_mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """Compute scaled dot product attention with rel. positional encoding.

        Returns:
            : Output tensor. (B, T_1, H * d_k)
        """
        q, k, v = (
            linear(x).view(x.size(0), -1, self.num_heads, self.d_k).transpose(1, 2)
            for linear, x in ((self.linear_q, query), (self.linear_k, key), (self.linear_v, value))
        )
        scores = self.compute_attention_score(q, k, pos_enc)
        return self.forward_attention(v, scores, mask, chunk_mask=chunk_mask)
