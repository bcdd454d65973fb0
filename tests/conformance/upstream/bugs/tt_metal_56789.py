"""A layer of CLIP's encoders, from a tutorial on classifying images without training."""

import math

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    """Self-attention of images (all patches) and texts (causal, with a mask that is added).

    hidden: size of a token.
    num_heads: number of heads.
    attention_mask: added to the scores, of shape (length, length), or None.
    """

    def __init__(self, hidden, num_heads, attention_mask=None):
        super().__init__()
        self.num_heads = num_heads
        self.attention_mask = attention_mask
        self.q_proj = nn.Linear(hidden, hidden)
        self.k_proj = nn.Linear(hidden, hidden)
        self.v_proj = nn.Linear(hidden, hidden)
        self.out_proj = nn.Linear(hidden, hidden)

        # scores are scaled by 1 / sqrt(head_dim)
        # before
        self.scale = 1.0 / math.sqrt(num_heads)
        # after
        head_dim = self.q_proj.weight.shape[0] // num_heads
        self.scale = 1.0 / math.sqrt(head_dim)
        # end

    def forward(self, x):
        seq_length, batch_size, hidden_size = x.shape
        head_size = hidden_size // self.num_heads

        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)

        # heads become part of the batch
        q = q.reshape(seq_length, batch_size * self.num_heads, head_size).transpose(0, 1)
        k = k.reshape(seq_length, batch_size * self.num_heads, head_size).transpose(0, 1)
        v = v.reshape(seq_length, batch_size * self.num_heads, head_size).transpose(0, 1)

        scores = torch.bmm(q, k.transpose(1, 2)) * self.scale
        if self.attention_mask is not None:
            scores = scores + self.attention_mask[:seq_length, :seq_length]
        probs = torch.softmax(scores, dim=-1)
        context = torch.bmm(probs, v).transpose(0, 1)
        return self.out_proj(context.reshape(seq_length, batch_size, hidden_size))


class ResidualAttentionBlock(nn.Module):
    """A pre-norm layer over tokens of shape (length, batch, hidden)."""

    def __init__(self, hidden, num_heads, attention_mask=None):
        super().__init__()
        self.attn = MultiHeadAttention(hidden, num_heads, attention_mask)
        self.ln_1 = nn.LayerNorm(hidden)
        self.mlp_fc1 = nn.Linear(hidden, 4 * hidden)
        self.mlp_fc2 = nn.Linear(4 * hidden, hidden)
        self.ln_2 = nn.LayerNorm(hidden)

    def mlp(self, x):
        x = self.mlp_fc1(x)
        # CLIP's quick approximation of GELU
        return self.mlp_fc2(x * torch.sigmoid(1.702 * x))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))
