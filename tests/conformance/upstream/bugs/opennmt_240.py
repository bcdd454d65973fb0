"""The self-attention of a decoder layer, with a mask of later positions that is made once."""

import math

import torch
from torch import nn

MAX_SIZE = 100


def get_attn_subsequent_mask(size):
    """The mask of the positions that come later: True is hidden."""
    return torch.ones(1, 1, size, size).triu(diagonal=1).bool()


class TransformerDecoderLayer(nn.Module):
    def __init__(self, size, head_count, dropout=0.1):
        super().__init__()
        self.head_count = head_count
        self.dim_per_head = size // head_count
        self.linear_keys = nn.Linear(size, size, bias=False)
        self.linear_values = nn.Linear(size, size, bias=False)
        self.linear_query = nn.Linear(size, size, bias=False)
        self.final_linear = nn.Linear(size, size, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.layer_norm = nn.LayerNorm(size)
        # before
        self.mask = get_attn_subsequent_mask(MAX_SIZE)
        # after
        self.register_buffer("mask", get_attn_subsequent_mask(MAX_SIZE))
        # end

    def shape_projection(self, x):
        b, l, _ = x.size()
        return x.view(b, l, self.head_count, self.dim_per_head).transpose(1, 2).contiguous()

    def unshape_projection(self, x):
        b, _, l, _ = x.size()
        return x.transpose(1, 2).contiguous().view(b, l, self.head_count * self.dim_per_head)

    def forward(self, input):
        """input: (batch, length, size)."""
        residual = input
        input = self.layer_norm(input)
        key_up = self.shape_projection(self.linear_keys(input))
        value_up = self.shape_projection(self.linear_values(input))
        query_up = self.shape_projection(self.linear_query(input))
        scaled = torch.matmul(query_up, key_up.transpose(2, 3)) / math.sqrt(self.dim_per_head)
        length = input.size(1)
        scaled = scaled.masked_fill(self.mask[:, :, :length, :length], -float("inf"))
        attn = torch.softmax(scaled, dim=-1)
        drop_attn = self.dropout(attn)
        out = self.unshape_projection(torch.matmul(drop_attn, value_up))
        return self.final_linear(out) + residual
