"""The attention of a knowledge tracing model, which weighs what a student knew against what they guessed."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def attention(q, k, v, counter, d_k, mask, dropout):
    """
    q, k, v: (batch, heads, seq, d_k). counter: (batch, 1, 1, seq), how much an answer speaks against the concept.
    mask: (1, 1, seq, seq), True where a step may look.
    """
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(d_k)
    scores = scores.masked_fill(mask == 0, -1e32)
    scores = F.softmax(scores, dim=-1)
    # What is contradicted counts less, and the weights are normalised again
    scores = scores - counter * scores
    # before
    scores = F.softmax(scores, dim=-1)
    # after
    scores = scores.masked_fill(mask == 0, -1e32)
    scores = F.softmax(scores, dim=-1)
    # end
    scores = dropout(scores)
    return torch.matmul(scores, v)


class ContradictoryAttention(nn.Module):
    def __init__(self, d_model, n_heads, dropout=0.0, kq_same=True, bias=True):
        super().__init__()
        self.d_model = d_model
        self.d_k = d_model // n_heads
        self.h = n_heads
        self.kq_same = kq_same

        self.v_linear = nn.Linear(d_model, d_model, bias=bias)
        self.k_linear = nn.Linear(d_model, d_model, bias=bias)
        if not kq_same:
            self.q_linear = nn.Linear(d_model, d_model, bias=bias)
        self.counter_linear = nn.Linear(d_model, 1)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(d_model, d_model, bias=bias)

    def forward(self, q, k, v):
        """Return what each step knows from the steps up to it, of shape (batch, seq, d_model)."""
        bs, seqlen = q.size(0), q.size(1)

        k_proj = self.k_linear(k).view(bs, -1, self.h, self.d_k).transpose(1, 2)
        if self.kq_same:
            q_proj = self.k_linear(q).view(bs, -1, self.h, self.d_k).transpose(1, 2)
        else:
            q_proj = self.q_linear(q).view(bs, -1, self.h, self.d_k).transpose(1, 2)
        v_proj = self.v_linear(v).view(bs, -1, self.h, self.d_k).transpose(1, 2)
        counter = torch.sigmoid(self.counter_linear(v)).transpose(1, 2).unsqueeze(1)

        mask = torch.ones(1, 1, seqlen, seqlen, dtype=torch.bool, device=q.device).tril()
        out = attention(q_proj, k_proj, v_proj, counter, self.d_k, mask, self.dropout)
        out = out.transpose(1, 2).contiguous().view(bs, -1, self.d_model)
        return self.out_proj(out)
