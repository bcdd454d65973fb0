"""The encoder block of a text classifier."""

import torch
import torch.nn.functional as F
from torch import nn


class Scaled_Dot_Product_Attention(nn.Module):
    """Scaled Dot-Product Attention."""

    def forward(self, Q, K, V, scale=None):
        """
        Args:
            Q: [batch_size * num_head, len_Q, dim_head]
            K: [batch_size * num_head, len_K, dim_head]
            V: [batch_size * num_head, len_V, dim_head]
            scale: 1 / sqrt(dim_head)
        """
        attention = torch.matmul(Q, K.permute(0, 2, 1))
        if scale:
            attention = attention * scale
        attention = F.softmax(attention, dim=-1)
        return torch.matmul(attention, V)


class Multi_Head_Attention(nn.Module):
    def __init__(self, dim_model, num_head, dropout=0.0):
        super().__init__()
        self.num_head = num_head
        assert dim_model % num_head == 0
        self.dim_head = dim_model // self.num_head
        self.fc_Q = nn.Linear(dim_model, num_head * self.dim_head)
        self.fc_K = nn.Linear(dim_model, num_head * self.dim_head)
        self.fc_V = nn.Linear(dim_model, num_head * self.dim_head)
        self.attention = Scaled_Dot_Product_Attention()
        self.fc = nn.Linear(num_head * self.dim_head, dim_model)
        self.dropout = nn.Dropout(dropout)
        self.layer_norm = nn.LayerNorm(dim_model)

    def forward(self, x):
        batch_size = x.size(0)
        Q, K, V = self.fc_Q(x), self.fc_K(x), self.fc_V(x)
        scale = self.dim_head**-0.5
        # before
        Q = Q.view(batch_size * self.num_head, -1, self.dim_head)
        K = K.view(batch_size * self.num_head, -1, self.dim_head)
        V = V.view(batch_size * self.num_head, -1, self.dim_head)
        context = self.attention(Q, K, V, scale)
        context = context.view(batch_size, -1, self.dim_head * self.num_head)
        # after
        Q, K, V = (
            t.view(batch_size, -1, self.num_head, self.dim_head).transpose(1, 2).flatten(0, 1)
            for t in (Q, K, V)
        )
        context = self.attention(Q, K, V, scale)
        context = context.view(batch_size, self.num_head, -1, self.dim_head).transpose(1, 2)
        context = context.flatten(2)
        # end
        out = self.dropout(self.fc(context))
        return self.layer_norm(out + x)
