"""The decoder block of a transformer that is built from scratch, with one module for each head."""

import math
from enum import IntEnum

import torch
import torch.nn as nn


class Dim(IntEnum):
    batch = 0
    seq = 1
    feature = 2


class ScaledDotProductAttention(nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, q, k, v, mask=None):
        d_k = k.size(-1)
        assert q.size(-1) == d_k

        # how well each query fits each key
        attn = torch.bmm(q, k.transpose(Dim.seq, Dim.feature))  # (Batch, Seq, Seq)
        # keep the variance of the scores at that of one feature
        attn = attn / math.sqrt(d_k)
        # no weight for what is hidden
        if mask is not None:
            attn = attn.masked_fill(mask, torch.finfo(attn.dtype).min)
        # the weights of a query sum to one
        attn = self.dropout(torch.softmax(attn, dim=-1))
        return torch.bmm(attn, v)  # (Batch, Seq, Feature)


class AttentionHead(nn.Module):
    def __init__(self, d_model, d_feature, dropout=0.1):
        super().__init__()
        # Queries, keys and values of a head are of one size
        self.attn = ScaledDotProductAttention(dropout)
        self.query_tfm = nn.Linear(d_model, d_feature)
        self.key_tfm = nn.Linear(d_model, d_feature)
        self.value_tfm = nn.Linear(d_model, d_feature)

    def forward(self, queries, keys, values, mask=None):
        Q = self.query_tfm(queries)  # (Batch, Seq, Feature)
        K = self.key_tfm(keys)
        V = self.value_tfm(values)
        return self.attn(Q, K, V, mask=mask)


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, d_feature, n_heads, dropout=0.1):
        super().__init__()
        # The heads share the features of the model
        assert d_model == d_feature * n_heads
        self.attn_heads = nn.ModuleList(
            [AttentionHead(d_model, d_feature, dropout) for _ in range(n_heads)]
        )
        self.projection = nn.Linear(d_feature * n_heads, d_model)

    def forward(self, queries, keys, values, mask=None):
        x = [attn(queries, keys, values, mask=mask) for attn in self.attn_heads]
        # side by side
        x = torch.cat(x, dim=Dim.feature)  # (Batch, Seq, D_Feature * n_heads)
        return self.projection(x)  # (Batch, Seq, D_Model)


class DecoderBlock(nn.Module):
    def __init__(self, d_model=512, d_feature=64, d_ff=2048, n_heads=8, dropout=0.1):
        super().__init__()
        self.masked_attn_head = MultiHeadAttention(d_model, d_feature, n_heads, dropout)
        self.attn_head = MultiHeadAttention(d_model, d_feature, n_heads, dropout)
        self.position_wise_feed_forward = nn.Sequential(
            nn.Linear(d_model, d_ff),
            nn.ReLU(),
            nn.Linear(d_ff, d_model),
        )
        self.layer_norm1 = nn.LayerNorm(d_model)
        self.layer_norm2 = nn.LayerNorm(d_model)
        self.layer_norm3 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, enc_out, src_mask=None, tgt_mask=None):
        """
        x: (Batch, Target Seq, D_Model)
        enc_out: outputs of the encoder, (Batch, Source Seq, D_Model)
        src_mask: True at the padding of the source, (Batch, 1, Source Seq)
        tgt_mask: True at target tokens that are still to come, (1, Target Seq, Target Seq)
        """
        # The target attends to itself
        att = self.masked_attn_head(x, x, x, mask=tgt_mask)
        x = x + self.dropout(self.layer_norm1(att))
        # The target attends to the source
        # before
        att = self.attn_head(queries=x, keys=x, values=x, mask=src_mask)
        # after
        att = self.attn_head(queries=x, keys=enc_out, values=enc_out, mask=src_mask)
        # end
        x = x + self.dropout(self.layer_norm2(att))
        # Each token on its own
        pos = self.position_wise_feed_forward(x)
        x = x + self.dropout(self.layer_norm3(pos))
        return x
