"""Multi-head attention with grouped keys and values, for the models of a training library."""

from typing import Optional

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    """
    Args:
        embed_dim (int): embedding dimension for the model
        num_heads (int): number of query heads
        num_kv_heads (int): number of key and value heads
        head_dim (int): dimension of each head
        is_causal (bool): sets the default mask to causal when no mask is provided
        attn_dropout (float): dropout value passed onto scaled_dot_product_attention
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        is_causal: bool = True,
        attn_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if num_heads % num_kv_heads != 0:
            raise ValueError(f"num_heads ({num_heads}) % num_kv_heads ({num_kv_heads}) must be 0")
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.attn_dropout = attn_dropout
        self.is_causal = is_causal
        self.q_proj = nn.Linear(embed_dim, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, num_kv_heads * head_dim, bias=False)
        self.output_proj = nn.Linear(num_heads * head_dim, embed_dim, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        y: Optional[torch.Tensor] = None,
        *,
        mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """
        Args:
            x (torch.Tensor): input tensor with shape [b x s_x x d] for the query
            y (Optional[torch.Tensor]): second input tensor with shape [b x s_y x d] for key and value
            mask (Optional[torch.Tensor]): True where a query attends to a key, with shape [b x s_x x s_y]
        """
        y = x if y is None else y
        b, s_x, _ = x.shape
        s_y = y.shape[1]
        q_per_kv = self.num_heads // self.num_kv_heads
        q = self.q_proj(x).view(b, s_x, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(y).view(b, s_y, self.num_kv_heads, 1, self.head_dim)
        v = self.v_proj(y).view(b, s_y, self.num_kv_heads, 1, self.head_dim)
        k = k.expand(-1, -1, -1, q_per_kv, -1).flatten(2, 3).transpose(1, 2)
        v = v.expand(-1, -1, -1, q_per_kv, -1).flatten(2, 3).transpose(1, 2)
        if mask is not None:
            mask = mask[:, None, :, :]

        # before
        dropout_p = self.attn_dropout
        # after
        dropout_p = self.attn_dropout if self.training else 0.0
        # end
        output = nn.functional.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=dropout_p,
            is_causal=self.is_causal and mask is None,
        )
        return self.output_proj(output.transpose(1, 2).contiguous().view(b, s_x, -1))
