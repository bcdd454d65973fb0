"""The self-attention of a language model that generates step by step, from prompts padded on the left."""

import math

import torch
from torch import nn


class MultiHeadedAttention(nn.Module):
    def __init__(self, head_count, model_dim, dropout=0.0):
        super().__init__()
        self.head_count = head_count
        self.dim_per_head = model_dim // head_count
        self.linear_keys = nn.Linear(model_dim, model_dim)
        self.linear_values = nn.Linear(model_dim, model_dim)
        self.linear_query = nn.Linear(model_dim, model_dim)
        self.final_linear = nn.Linear(model_dim, model_dim)
        self.dropout = nn.Dropout(dropout)

    def shape(self, x):
        return x.view(x.size(0), -1, self.head_count, self.dim_per_head).transpose(1, 2)

    def forward(self, inputs, tgt_pad_mask, layer_cache=None):
        """
        inputs: the tokens of this step, of shape (batch, length, model_dim)
        tgt_pad_mask: True at padding, of shape (batch, all tokens so far)
        layer_cache: the keys and values of the steps before
        """
        query = self.shape(self.linear_query(inputs))
        key = self.shape(self.linear_keys(inputs))
        value = self.shape(self.linear_values(inputs))
        if layer_cache is not None:
            key = torch.cat((layer_cache[0], key), dim=2)
            value = torch.cat((layer_cache[1], value), dim=2)
        q_len, k_len = query.size(2), key.size(2)

        scores = torch.matmul(query, key.transpose(2, 3)) / math.sqrt(self.dim_per_head)
        future_mask = torch.ones((q_len, k_len), dtype=torch.bool, device=inputs.device)
        future_mask = future_mask.triu(k_len - q_len + 1)
        # before
        dec_mask = (
            tgt_pad_mask[:, None, :] | future_mask if layer_cache is None else future_mask[None]
        )
        # after
        dec_mask = tgt_pad_mask[:, None, :] | future_mask
        # end
        scores = scores.masked_fill(dec_mask.unsqueeze(1), torch.finfo(scores.dtype).min)

        attn = self.dropout(torch.softmax(scores, dim=-1))
        context = torch.matmul(attn, value).transpose(1, 2).contiguous()
        context = context.view(inputs.size(0), q_len, -1)
        return self.final_linear(context), (key, value)
