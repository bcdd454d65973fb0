"""Many-to-many modelling of neural recordings: the attention of the masked model of spikes (NDT1)."""

from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, pos_ids, cos, sin, unsqueeze_dim=1):
    cos = cos[pos_ids].unsqueeze(unsqueeze_dim)
    sin = sin[pos_ids].unsqueeze(unsqueeze_dim)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


class NeuralAttention(nn.Module):
    """Attention between the time bins of a trial.

    Args:
        idx: Index of the layer.
        hidden_size: Size of an embedded bin.
        n_heads: Number of heads.
        use_bias: Whether the projections have a bias.
        dropout: Dropout of the attention weights and of the output.
        use_rope: Whether the bins are told apart by rotary embeddings.
        max_F: Largest number of bins.
    """

    def __init__(
        self,
        idx: int = 0,
        hidden_size: int = 128,
        n_heads: int = 8,
        use_bias: bool = True,
        dropout: float = 0.4,
        use_rope: bool = False,
        base: float = 10000.0,
        max_F: int = 1024,
    ):
        super().__init__()
        self.idx = idx
        self.hidden_size = hidden_size
        self.n_heads = n_heads
        assert self.hidden_size % self.n_heads == 0, (
            f"{n_heads} heads do not share {hidden_size} features evenly"
        )
        self.head_size = hidden_size // n_heads
        self.use_rope = use_rope

        self.query = nn.Linear(hidden_size, hidden_size, bias=use_bias)
        self.key = nn.Linear(hidden_size, hidden_size, bias=use_bias)
        self.value = nn.Linear(hidden_size, hidden_size, bias=use_bias)

        self.attn_dropout = dropout
        self.out_proj = nn.Linear(hidden_size, hidden_size, bias=use_bias)
        self.dropout = nn.Dropout(dropout)

        if use_rope:
            dim = self.head_size
            inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
            emb = torch.outer(torch.arange(max_F).float(), inv_freq).repeat(1, 2)
            self.register_buffer("cos", emb.cos(), persistent=False)
            self.register_buffer("sin", emb.sin(), persistent=False)

    def forward(
        self,
        x: torch.Tensor,  # (bs, seq_len, hidden_size)
        attn_mask: Optional[torch.Tensor] = None,  # (bs, seq_len, seq_len), 1 where a bin is seen
        timestamp: Optional[torch.LongTensor] = None,  # (bs, seq_len)
    ) -> torch.Tensor:
        B, T, _ = x.size()

        if attn_mask is not None:
            attn_mask = attn_mask.unsqueeze(1).expand(B, self.n_heads, T, T).bool()

        q = self.query(x).view(B, T, self.n_heads, self.head_size).transpose(1, 2)
        k = self.key(x).view(B, T, self.n_heads, self.head_size).transpose(1, 2)
        v = self.value(x).view(B, T, self.n_heads, self.head_size).transpose(1, 2)

        if self.use_rope:
            if timestamp is None:
                timestamp = torch.arange(T, device=x.device).expand(B, T)
            q, k = apply_rotary_pos_emb(q, k, timestamp, self.cos, self.sin)

        # before
        dropout_p = self.attn_dropout
        # after
        dropout_p = self.attn_dropout if self.training else 0.0
        # end
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=dropout_p)
        out = out.transpose(1, 2).contiguous().view(B, T, self.hidden_size)
        return self.out_proj(self.dropout(out))
