"""Multi-head attention whose projections are modules, so that they can be quantized."""

import torch
import torch.nn.functional as F
from torch import nn


class MultiheadAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.0, bias=True, batch_first=False):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.linear_Q = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.linear_K = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.linear_V = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def forward(self, query, key, value):
        if self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        tgt_len, bsz, _ = query.size()
        q = self.linear_Q(query) * self.head_dim**-0.5
        k = self.linear_K(key)
        v = self.linear_V(value)

        q = q.contiguous().view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        k = k.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        v = v.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)

        attn_output_weights = F.softmax(torch.bmm(q, k.transpose(1, 2)), dim=-1)
        attn_output_weights = F.dropout(attn_output_weights, self.dropout, self.training)
        attn_output = torch.bmm(attn_output_weights, v)  # (bsz * num_heads, tgt_len, head_dim)

        # before
        if self.batch_first:
            attn_output = attn_output.view(bsz, tgt_len, self.embed_dim)
        else:
            attn_output = attn_output.transpose(0, 1).contiguous()
            attn_output = attn_output.view(tgt_len, bsz, self.embed_dim)
        # after
        attn_output = attn_output.transpose(0, 1).contiguous()
        attn_output = attn_output.view(tgt_len, bsz, self.embed_dim)
        if self.batch_first:
            attn_output = attn_output.transpose(0, 1)
        # end
        return self.out_proj(attn_output)
