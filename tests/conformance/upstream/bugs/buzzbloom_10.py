"""How a cascade of posts spreads: the sequence of its users is encoded with a causal transformer."""

import torch
import torch.nn.functional as F
from torch import nn


class TransformerBlock(nn.Module):
    """A pre-norm block with causal self-attention."""

    def __init__(self, dim, n_heads=4, dropout=0.1):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, n_heads, dropout=dropout, batch_first=True)
        self.norm2 = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        length = x.size(1)
        causal = torch.triu(
            torch.ones(length, length, dtype=torch.bool, device=x.device), diagonal=1
        )
        y = self.norm1(x)
        y, _ = self.attn(y, y, y, attn_mask=causal, need_weights=False)
        x = x + self.dropout(y)
        return x + self.dropout(self.ffn(self.norm2(x)))


class IntentionContext(nn.Module):
    """What each intention behind a post finds in the cascade, read back by every user of it."""

    def __init__(self, dim, n_intentions):
        super().__init__()
        self.intentions = nn.Parameter(torch.randn(n_intentions, dim) * 0.1)
        self.to_key = nn.Linear(dim, dim)
        self.scale = dim**-0.5

    def forward(self, x):
        scores = torch.einsum("kd,bld->bkl", self.intentions, self.to_key(x)) * self.scale
        intention_vectors = torch.einsum("bkl,bld->bkd", F.softmax(scores, dim=-1), x)
        back = torch.einsum("bld,bkd->blk", x, intention_vectors) * self.scale
        return torch.einsum("blk,bkd->bld", F.softmax(back, dim=-1), intention_vectors)


class CascadeEncoder(nn.Module):
    """
    dim: size of a user.
    n_heads: heads of the sequence encoder.
    n_intentions: how many reasons there are to share a post.
    """

    def __init__(self, dim, n_heads=4, n_intentions=3, dropout=0.1):
        super().__init__()
        self.dim = dim
        self.seq_encoder = TransformerBlock(dim, n_heads, dropout)
        # before
        self.context = IntentionContext(dim, n_intentions)
        self.gate = nn.Linear(2 * dim, dim)
        # after
        # end

    def forward(self, x):
        # x: embedded users in the order in which they shared the post, of shape (batch, length, dim)
        out = self.seq_encoder(x)
        # before
        context = self.context(x)
        gate = torch.sigmoid(self.gate(torch.cat([out, context], dim=-1)))
        out = gate * out + (1 - gate) * context
        # after
        # end
        return out
