"""A layer of an encoder, trained with or without --fp16. Its layout is (tokens, batch, channels)."""

import torch
import torch.nn.functional as F
from torch import nn


class MultiheadAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.dropout = nn.Dropout(dropout)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, key, value, key_padding_mask=None, attn_mask=None):
        tgt_len, bsz, embed_dim = query.size()
        q = self.q_proj(query) * self.scaling
        q, k, v = (
            t.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
            for t in (q, self.k_proj(key), self.v_proj(value))
        )
        attn_weights = torch.bmm(q, k.transpose(1, 2))
        if attn_mask is not None:
            attn_weights = attn_weights + attn_mask.unsqueeze(0)
        if key_padding_mask is not None:
            attn_weights = attn_weights.view(bsz, self.num_heads, tgt_len, -1)
            hidden = key_padding_mask[:, None, None].to(torch.bool)
            attn_weights = attn_weights.masked_fill(hidden, float("-inf"))
            attn_weights = attn_weights.view(bsz * self.num_heads, tgt_len, -1)
        attn = torch.bmm(self.dropout(F.softmax(attn_weights, dim=-1)), v)
        return self.out_proj(attn.transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim))


class TransformerEncoderLayer(nn.Module):
    def __init__(self, embed_dim, attention_heads, ffn_dim=32, dropout=0.1):
        super().__init__()
        self.self_attn = MultiheadAttention(embed_dim, attention_heads, dropout)
        self.self_attn_layer_norm = nn.LayerNorm(embed_dim)
        self.fc1 = nn.Linear(embed_dim, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, embed_dim)
        self.final_layer_norm = nn.LayerNorm(embed_dim)
        self.dropout_module = nn.Dropout(dropout)

    def forward(self, x, encoder_padding_mask=None, attn_mask=None):
        """
        Args:
            x (Tensor): input to the layer of shape `(seq_len, batch, embed_dim)`
            encoder_padding_mask (ByteTensor): of shape `(batch, seq_len)`, 1 at padding
            attn_mask (ByteTensor): of shape `(tgt_len, src_len)`, where `attn_mask[tgt_i, src_j] = 1`
                means that src_j is excluded when calculating the embedding for tgt_i
        """
        if attn_mask is not None:
            # -inf is no option here: padding that sees only padding would become NaN
            excluded = attn_mask.to(torch.bool)
            # before
            attn_mask = torch.zeros_like(excluded, dtype=x.dtype).masked_fill(excluded, -1e8)
            # after
            fill = -1e4 if x.dtype == torch.float16 else -1e8
            attn_mask = torch.zeros_like(excluded, dtype=x.dtype).masked_fill(excluded, fill)
            # end
        residual = x
        x = self.self_attn(x, x, x, key_padding_mask=encoder_padding_mask, attn_mask=attn_mask)
        x = self.self_attn_layer_norm(residual + self.dropout_module(x))
        residual = x
        x = self.fc2(self.dropout_module(F.relu(self.fc1(x))))
        return self.final_layer_norm(residual + self.dropout_module(x))
