"""The attention of a language model whose cache of keys and values is one block of memory."""

import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def _shape(self, x):
        return x.view(x.shape[0], -1, self.num_heads, self.head_dim).transpose(1, 2)

    def init_cache(self, batch, max_s):
        """Return an empty cache: keys and values, of shape (2, batch, heads, max_s, head_dim)."""
        return self.q_proj.weight.new_zeros(2, batch, self.num_heads, max_s, self.head_dim)

    def forward(self, x, past_key_value=None, src_s=0):
        """
        past_key_value: the cache, in which x is written
        src_s: how many tokens are in the cache
        """
        b, tgt_s, h = x.shape
        q = self._shape(self.q_proj(x)) * self.scaling
        k = self._shape(self.k_proj(x))
        v = self._shape(self.v_proj(x))

        if past_key_value is not None and src_s == 0:
            past_key_value[0, :, :, :tgt_s] = k
            past_key_value[1, :, :, :tgt_s] = v
        elif past_key_value is not None:
            past_key_value[0, :, :, src_s : src_s + tgt_s] = k
            # before
            past_key_value[1, :, :, src_s : src_s + tgt_s] = k
            # after
            past_key_value[1, :, :, src_s : src_s + tgt_s] = v
            # end
            k, v = past_key_value[:, :, :, : src_s + tgt_s]

        attn_weights = torch.matmul(q, k.transpose(-1, -2))
        idx = torch.arange(k.shape[2], device=x.device)
        causal_mask = idx <= (idx[src_s : src_s + tgt_s]).view(tgt_s, 1)
        attn_weights = torch.where(causal_mask, attn_weights, float("-inf"))
        attn_weights = torch.softmax(attn_weights, dim=-1)
        value = torch.matmul(attn_weights, v).transpose(1, 2).reshape(b, tgt_s, h)
        return self.out_proj(value)
