"""Relative positions as in Transformer-XL, in the attention of a speech encoder that looks both ways."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class RelPosEncXL(nn.Module):
    """Sinusoidal embeddings of relative distances.

    Arguments
    ---------
    emb_dim : int
        Size of an embedding.
    """

    def __init__(self, emb_dim: int):
        super().__init__()
        inv_freq = torch.exp(
            torch.arange(0, emb_dim, 2, dtype=torch.float32) * -(math.log(10000.0) / emb_dim)
        )
        self.emb_dim = emb_dim
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def make_pe(self, seq_len: int):
        """Return the embeddings of the distances from seq_len - 1 down to 1 - seq_len."""
        with torch.no_grad():
            positions = torch.arange(
                seq_len, dtype=self.inv_freq.dtype, device=self.inv_freq.device
            )
            sinusoids = torch.outer(positions, self.inv_freq)
            pe_past = torch.empty(
                seq_len, self.emb_dim, dtype=sinusoids.dtype, device=sinusoids.device
            )
            pe_future = torch.empty_like(pe_past)
            pe_past[:, 0::2] = torch.sin(sinusoids)
            pe_past[:, 1::2] = torch.cos(sinusoids)
            # before
            pe_future[:, 0::2] = torch.sin(sinusoids)
            # after
            pe_future[:, 0::2] = torch.sin(-sinusoids)
            # end
            pe_future[:, 1::2] = torch.cos(sinusoids)
            return torch.cat([pe_past.flip(0), pe_future[1:]], dim=0)

    def forward(self, x: torch.Tensor):
        return self.make_pe(x.size(1)).unsqueeze(0)


class RelPosMHAXL(nn.Module):
    """Multi-head self-attention with relative positions.

    Arguments
    ---------
    embed_dim : int
        Size of the input.
    num_heads : int
        Number of heads.
    dropout : float
        Rate for the weights.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim, bias=False)
        self.linear_pos = nn.Linear(embed_dim, embed_dim, bias=False)
        self.pos_bias_u = nn.Parameter(torch.randn(num_heads, self.head_dim) * 0.1)
        self.pos_bias_v = nn.Parameter(torch.randn(num_heads, self.head_dim) * 0.1)
        self.positional_encoding = RelPosEncXL(embed_dim)
        self.dropout_att = nn.Dropout(dropout)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.scale = 1 / math.sqrt(self.head_dim)

    def rel_shift(self, x):
        """Move row i of (batch, heads, T, 2T - 1) left by T - 1 - i places."""
        b, h, qlen, pos_len = x.size()
        x = F.pad(x, pad=(1, 0)).view(b, h, -1, qlen)
        return x[:, :, 1:].view(b, h, qlen, pos_len)[..., : pos_len // 2 + 1]

    def forward(self, x, key_padding_mask=None):
        """x: (batch, time, embed_dim). key_padding_mask: True at padding, (batch, time)."""
        bsz, qlen, _ = x.shape
        pos_embs = self.positional_encoding(x).to(x.dtype)
        query, key, value = self.in_proj(x).view(bsz, qlen, self.num_heads, -1).chunk(3, dim=-1)
        p_k = self.linear_pos(pos_embs).view(1, -1, self.num_heads, self.head_dim)

        q_with_bias_u = (query + self.pos_bias_u).transpose(1, 2)
        q_with_bias_v = (query + self.pos_bias_v).transpose(1, 2)
        matrix_ac = torch.matmul(q_with_bias_u * self.scale, key.permute(0, 2, 3, 1))
        matrix_bd = torch.matmul(q_with_bias_v * self.scale, p_k.permute(0, 2, 3, 1))
        attn_score = matrix_ac + self.rel_shift(matrix_bd)

        if key_padding_mask is not None:
            attn_score = attn_score.masked_fill(key_padding_mask[:, None, None], float("-inf"))
        attn_score = self.dropout_att(F.softmax(attn_score, dim=-1))
        out = torch.matmul(attn_score, value.transpose(1, 2))
        return self.out_proj(out.transpose(1, 2).reshape(bsz, qlen, -1))
