"""Attention of an image to a text and of the text to the image, by the same scores."""

import torch
import torch.nn.functional as F
from torch import nn


class BiMultiHeadAttention(nn.Module):
    def __init__(self, v_dim, l_dim, embed_dim, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scale = self.head_dim**-0.5
        self.dropout = dropout
        self.v_proj = nn.Linear(v_dim, embed_dim)
        self.l_proj = nn.Linear(l_dim, embed_dim)
        self.values_v_proj = nn.Linear(v_dim, embed_dim)
        self.values_l_proj = nn.Linear(l_dim, embed_dim)
        self.out_v_proj = nn.Linear(embed_dim, v_dim)
        self.out_l_proj = nn.Linear(embed_dim, l_dim)

    def _shape(self, tensor, bsz):
        return tensor.view(bsz, -1, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, vision, lang, attention_mask_l=None):
        """
        vision: (batch, places, v_dim)
        lang: (batch, words, l_dim)
        attention_mask_l: True at words and False at padding, of shape (batch, words)
        """
        bsz, tgt_len, _ = vision.size()
        src_len = lang.size(1)
        query_states = self._shape(self.v_proj(vision) * self.scale, bsz)
        key_states = self._shape(self.l_proj(lang), bsz)
        value_v_states = self._shape(self.values_v_proj(vision), bsz)
        value_l_states = self._shape(self.values_l_proj(lang), bsz)

        attn_weights = torch.matmul(query_states, key_states.transpose(2, 3))
        attn_weights_l = attn_weights.transpose(2, 3).softmax(dim=-1)

        if attention_mask_l is not None:
            attention_mask = attention_mask_l.unsqueeze(1).unsqueeze(1)
            attention_mask = attention_mask.expand(bsz, 1, tgt_len, src_len)
            minimum = torch.finfo(attn_weights.dtype).min
            # before
            attention_mask = attention_mask.masked_fill(attention_mask == 0, minimum)
            # after
            zeros = torch.zeros_like(attention_mask, dtype=attn_weights.dtype)
            attention_mask = zeros.masked_fill(attention_mask == 0, minimum)
            # end
            attn_weights = attn_weights + attention_mask
        attn_weights_v = attn_weights.softmax(dim=-1)

        attn_probs_v = F.dropout(attn_weights_v, p=self.dropout, training=self.training)
        attn_probs_l = F.dropout(attn_weights_l, p=self.dropout, training=self.training)
        attn_output_v = torch.matmul(attn_probs_v, value_l_states).transpose(1, 2).flatten(2)
        attn_output_l = torch.matmul(attn_probs_l, value_v_states).transpose(1, 2).flatten(2)
        return self.out_v_proj(attn_output_v), self.out_l_proj(attn_output_l)
