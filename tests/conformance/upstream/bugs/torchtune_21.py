"""The self-attention of a library for fine-tuning, with fewer heads of keys and values than of queries."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LlamaSelfAttention(nn.Module):
    """
    Args:
        embed_dim (int): embedding dimension of the model
        num_heads (int): number of query heads
        num_kv_heads (Optional[int]): number of key and value heads
        attn_dropout (float): dropout of the attention weights
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: Optional[int] = None,
        attn_dropout: float = 0.0,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads or num_heads
        self.head_dim = embed_dim // num_heads
        self.attn_dropout = attn_dropout
        qkv_dim = (num_heads + 2 * self.num_kv_heads) * self.head_dim
        self.qkv_proj = nn.Linear(embed_dim, qkv_dim, bias=False)
        self.output_proj = nn.Linear(embed_dim, embed_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        bsz, seq_len, _ = x.shape
        q_per_kv = self.num_heads // self.num_kv_heads
        qkv = self.qkv_proj(x)
        # [b, s, n_kv, q_per_kv + 2, h_d]
        qkv = qkv.view(bsz, seq_len, self.num_kv_heads, q_per_kv + 2, self.head_dim)
        q, k, v = torch.split(qkv, (q_per_kv, 1, 1), dim=3)

        if self.num_heads != self.num_kv_heads:
            k = k.expand(bsz, seq_len, self.num_kv_heads, q_per_kv, self.head_dim)
            v = v.expand(bsz, seq_len, self.num_kv_heads, q_per_kv, self.head_dim)

        q = q.reshape(bsz, seq_len, -1, self.head_dim)
        k = k.reshape(bsz, seq_len, -1, self.head_dim)
        # before
        v = k.reshape(bsz, seq_len, -1, self.head_dim)
        # after
        v = v.reshape(bsz, seq_len, -1, self.head_dim)
        # end

        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        dropout_p = self.attn_dropout if self.training else 0.0
        output = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=True)
        output = output.transpose(1, 2).contiguous().view(bsz, seq_len, -1)
        return self.output_proj(output)
