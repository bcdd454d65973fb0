"""Luong's attention of a decoder over its context."""

import torch
from torch import nn


class Attention(nn.Module):
    """Apply attention mechanism on the `context` using the `query`.

    Args:
        dimensions (int): Dimensionality of the query and context.
        attention_type (str, optional): How to compute the attention score: dot or general.
    """

    def __init__(self, dimensions, attention_type="general"):
        super().__init__()
        if attention_type not in ["dot", "general"]:
            raise ValueError("Invalid attention type selected.")
        self.attention_type = attention_type
        if self.attention_type == "general":
            self.linear_in = nn.Linear(dimensions, dimensions, bias=False)
        self.linear_out = nn.Linear(dimensions * 2, dimensions, bias=False)
        # before
        self.softmax = nn.Softmax(dim=0)
        # after
        self.softmax = nn.Softmax(dim=-1)
        # end
        self.tanh = nn.Tanh()

    def forward(self, query, context):
        """
        Args:
            query (tensor [batch size, output length, dimensions]): Sequence of queries.
            context (tensor [batch size, query length, dimensions]): Data overwhich to attend.

        Returns:
            tuple with `output` [batch size, output length, dimensions] and `weights`
            [batch size, output length, query length].
        """
        batch_size, output_len, dimensions = query.size()
        query_len = context.size(1)
        if self.attention_type == "general":
            query = query.reshape(batch_size * output_len, dimensions)
            query = self.linear_in(query)
            query = query.reshape(batch_size, output_len, dimensions)
        attention_scores = torch.bmm(query, context.transpose(1, 2).contiguous())
        attention_scores = attention_scores.view(batch_size * output_len, query_len)
        attention_weights = self.softmax(attention_scores)
        attention_weights = attention_weights.view(batch_size, output_len, query_len)
        mix = torch.bmm(attention_weights, context)
        combined = torch.cat((mix, query), dim=2)
        combined = combined.view(batch_size * output_len, 2 * dimensions)
        output = self.linear_out(combined).view(batch_size, output_len, dimensions)
        return self.tanh(output), attention_weights
