"""Attention over the pairs of fields of an attentional factorization machine."""

import torch
import torch.nn.functional as F
from torch import nn


class AttentionalFactorizationMachine(nn.Module):
    def __init__(self, embed_dim, attn_size, dropouts=(0.2, 0.2)):
        super().__init__()
        self.attention = nn.Linear(embed_dim, attn_size)
        self.projection = nn.Linear(attn_size, 1)
        self.fc = nn.Linear(embed_dim, 1)
        self.dropouts = dropouts

    def forward(self, x):
        """
        :param x: Float tensor of size ``(batch_size, num_fields, embed_dim)``
        """
        num_fields = x.shape[1]
        row, col = [], []
        for i in range(num_fields - 1):
            for j in range(i + 1, num_fields):
                row.append(i)
                col.append(j)
        p, q = x[:, row], x[:, col]
        inner_product = p * q
        attn_scores = F.relu(self.attention(inner_product))
        attn_scores = F.softmax(self.projection(attn_scores), dim=1)
        # before
        attn_scores = F.dropout(attn_scores, p=self.dropouts[0])
        # after
        attn_scores = F.dropout(attn_scores, p=self.dropouts[0], training=self.training)
        # end
        attn_output = torch.sum(attn_scores * inner_product, dim=1)
        attn_output = F.dropout(attn_output, p=self.dropouts[1], training=self.training)
        return self.fc(attn_output)
