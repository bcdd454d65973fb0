"""Luong's attention of a decoder over its context, for queries of any layout in memory."""

import torch
from torch import nn


class Attention(nn.Module):
    """Apply attention mechanism on the `context` using the `query`."""

    def __init__(self, dimensions):
        super().__init__()
        self.linear_in = nn.Linear(dimensions, dimensions, bias=False)
        self.linear_out = nn.Linear(dimensions * 2, dimensions, bias=False)
        self.softmax = nn.Softmax(dim=-1)
        self.tanh = nn.Tanh()

    def forward(self, query, context):
        batch_size, output_len, dimensions = query.size()
        # before
        query = query.view(batch_size * output_len, dimensions)
        # after
        query = query.reshape(batch_size * output_len, dimensions)
        # end
        query = self.linear_in(query)
        query = query.reshape(batch_size, output_len, dimensions)
        attention_scores = torch.bmm(query, context.transpose(1, 2).contiguous())
        attention_weights = self.softmax(attention_scores)
        mix = torch.bmm(attention_weights, context)
        combined = torch.cat((mix, query), dim=2)
        output = self.tanh(self.linear_out(combined))
        return output, attention_weights
