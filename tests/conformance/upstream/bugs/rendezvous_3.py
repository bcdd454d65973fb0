"""The attention of a decoder to several kinds of features at once, on single frames."""

import math

import torch
from torch import nn


class MHMA(nn.Module):
    """Multi-head attention over the positions of a frame."""

    def __init__(self, model_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.to_query = nn.Linear(model_dim, model_dim)
        self.to_key = nn.Linear(model_dim, model_dim)
        self.to_value = nn.Linear(model_dim, model_dim)
        self.concat = nn.Linear(model_dim, model_dim)
        # before
        self.soft = nn.Softmax(dim=1)
        # after
        self.soft = nn.Softmax(dim=-1)
        # end

    def scale_dot_product(self, key, value, query):
        dk = math.sqrt(query.size(-1))
        affinity = torch.einsum("bhqd,bhkd->bhqk", query, key)
        attn = self.soft(affinity / dk)
        return torch.einsum("bhqk,bhkd->bhqd", attn, value)

    def forward(self, inputs):
        b, n, c = inputs.shape
        query = self.to_query(inputs).view(b, n, self.num_heads, -1).permute(0, 2, 1, 3)
        key = self.to_key(inputs).view(b, n, self.num_heads, -1).permute(0, 2, 1, 3)
        value = self.to_value(inputs).view(b, n, self.num_heads, -1).permute(0, 2, 1, 3)
        attention = self.scale_dot_product(key, value, query)
        attention = attention.permute(0, 2, 1, 3).reshape(b, n, c)
        return self.concat(attention)
