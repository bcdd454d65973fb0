"""Recommends the next item: the items of a history attend to a few interests, each an average of items (LightSANs)."""

import math

import torch
from torch import nn


class ItemToInterestAggregation(nn.Module):
    """Average the items of a history into k interests."""

    def __init__(self, hidden_size, k_interests=3):
        super().__init__()
        self.k_interests = k_interests
        self.theta = nn.Parameter(torch.randn(hidden_size, k_interests))

    def forward(self, input_tensor, item_mask):
        """input_tensor: (batch, length, hidden_size). item_mask: true at items, (batch, length)."""
        d_matrix = torch.matmul(input_tensor, self.theta)  # [B, L, k]
        # before
        d_matrix = nn.Softmax(dim=-2)(d_matrix)
        # after
        d_matrix = d_matrix.masked_fill(~item_mask.unsqueeze(-1), float("-inf"))
        d_matrix = nn.Softmax(dim=-2)(d_matrix)
        # end
        return torch.einsum("nij,nik->nkj", input_tensor, d_matrix)


class LightMultiHeadAttention(nn.Module):
    def __init__(self, n_heads, k_interests, hidden_size, attn_dropout_prob=0.1):
        super().__init__()
        self.num_attention_heads = n_heads
        self.attention_head_size = hidden_size // n_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.attpooling_key = ItemToInterestAggregation(hidden_size, k_interests)
        self.attpooling_value = ItemToInterestAggregation(hidden_size, k_interests)
        self.attn_dropout = nn.Dropout(attn_dropout_prob)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.LayerNorm = nn.LayerNorm(hidden_size, eps=1e-12)

    def transpose_for_scores(self, x):
        new_x_shape = (*x.size()[:-1], self.num_attention_heads, self.attention_head_size)
        return x.view(*new_x_shape).permute(0, 2, 1, 3)

    def forward(self, input_tensor, item_mask):
        query_layer = self.transpose_for_scores(self.query(input_tensor))
        key_layer = self.attpooling_key(self.key(input_tensor), item_mask)
        value_layer = self.attpooling_value(self.value(input_tensor), item_mask)
        key_layer = self.transpose_for_scores(key_layer)
        value_layer = self.transpose_for_scores(value_layer)

        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        attention_scores = attention_scores / math.sqrt(self.attention_head_size)
        attention_probs = self.attn_dropout(nn.Softmax(dim=-1)(attention_scores))
        context_layer = torch.matmul(attention_probs, value_layer)
        context_layer = context_layer.permute(0, 2, 1, 3).flatten(2)
        return self.LayerNorm(self.dense(context_layer) + input_tensor)


class LightSANs(nn.Module):
    """
    Args:
        n_items: number of items, with the padding item 0.
        hidden_size: size of an item.
        n_heads: number of heads.
        k_interests: number of interests.
        max_seq_length: length of the longest history.
    """

    def __init__(self, n_items, hidden_size, n_heads, k_interests=3, max_seq_length=50, n_layers=2):
        super().__init__()
        # its rows are drawn anew by the initialization of weights, and the row of the padding with them
        self.item_embedding = nn.Embedding(n_items, hidden_size)
        self.position_embedding = nn.Embedding(max_seq_length, hidden_size)
        self.layers = nn.ModuleList(
            [LightMultiHeadAttention(n_heads, k_interests, hidden_size) for _ in range(n_layers)]
        )

    def forward(self, item_seq, item_seq_len):
        """
        item_seq: ids of items, then 0 as padding, (batch, length). item_seq_len: number of items, (batch,).
        Returns the scores of all items as the next one.
        """
        positions = torch.arange(item_seq.size(1), device=item_seq.device)
        hidden = self.item_embedding(item_seq) + self.position_embedding(positions)
        item_mask = item_seq != 0
        for layer in self.layers:
            hidden = layer(hidden, item_mask)
        last = (item_seq_len - 1).view(-1, 1, 1).expand(-1, 1, hidden.size(-1))
        seq_output = hidden.gather(1, last).squeeze(1)
        return torch.matmul(seq_output, self.item_embedding.weight.transpose(0, 1))
