"""The transformer encoder of a course, built on its own attention function."""

import math

from torch import Tensor, nn


def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dropout: nn.Module | None = None
) -> tuple[Tensor, Tensor]:
    """Attend.

    Args:
        q: Queries of shape (..., q_len, head_dim).
        k: Keys of shape (..., k_len, head_dim).
        v: Values of shape (..., k_len, head_dim).
        mask: True where a query may look, broadcastable to (..., q_len, k_len).
        dropout: Applied to the weights.
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(dim=-1)
    if dropout is not None:
        weights = dropout(weights)
    return weights @ v, weights


class MultiheadAttention(nn.Module):
    """Attend with several heads.

    Args:
        embed_dim: Size of the tokens.
        num_heads: Number of heads.
        dropout: Rate for the weights.
        bias: Whether the projections have biases.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True):
        super().__init__()
        if embed_dim % num_heads != 0:
            raise ValueError(f"embed_dim {embed_dim} is no multiple of num_heads {num_heads}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        batch_size, q_len, _ = query.shape
        k_len = key.size(1)
        q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)

        # Split the heads
        # before
        q = q.view(batch_size, self.num_heads, q_len, self.head_dim)
        k = k.view(batch_size, self.num_heads, k_len, self.head_dim)
        v = v.view(batch_size, self.num_heads, k_len, self.head_dim)
        # after
        q = q.view(batch_size, q_len, self.num_heads, self.head_dim).transpose(1, 2)
        k = k.view(batch_size, k_len, self.num_heads, self.head_dim).transpose(1, 2)
        v = v.view(batch_size, k_len, self.num_heads, self.head_dim).transpose(1, 2)
        # end

        if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)
        out, _ = scaled_dot_product_attention(q, k, v, mask, self.dropout)

        # Merge the heads
        out = out.transpose(1, 2).contiguous().view(batch_size, q_len, self.embed_dim)
        return self.out_proj(out)


class TransformerEncoderLayer(nn.Module):
    """Self-attention and a feed-forward layer, each with a residual and a norm after it."""

    def __init__(self, embed_dim: int, num_heads: int, ffn_dim: int, dropout: float = 0.1):
        super().__init__()
        self.self_attn = MultiheadAttention(embed_dim, num_heads, dropout)
        self.norm1 = nn.LayerNorm(embed_dim)
        self.ffn = nn.Sequential(
            nn.Linear(embed_dim, ffn_dim), nn.ReLU(), nn.Linear(ffn_dim, embed_dim)
        )
        self.norm2 = nn.LayerNorm(embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.norm1(x + self.dropout(self.self_attn(x, x, x, mask)))
        return self.norm2(x + self.dropout(self.ffn(x)))
