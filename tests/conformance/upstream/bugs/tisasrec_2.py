"""The attention of a sequential recommender, over what a user clicked."""

import torch
from torch import nn


class TimeAwareMultiHeadAttention(nn.Module):
    def __init__(self, hidden_size, head_num, dropout_rate=0.0):
        super().__init__()
        self.Q_w = nn.Linear(hidden_size, hidden_size)
        self.K_w = nn.Linear(hidden_size, hidden_size)
        self.V_w = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(p=dropout_rate)
        self.softmax = nn.Softmax(dim=-1)
        self.head_num = head_num
        self.head_size = hidden_size // head_num

    def forward(self, queries, keys, time_mask, attn_mask):
        """
        queries, keys: (users, clicks, hidden_size)
        time_mask: True where there is no click, of shape (users, clicks)
        attn_mask: True at clicks that are in the future, of shape (clicks, clicks)
        """
        Q, K, V = self.Q_w(queries), self.K_w(keys), self.V_w(keys)

        # head dim * batch dim for parallelization
        Q_ = torch.cat(torch.split(Q, self.head_size, dim=2), dim=0)
        K_ = torch.cat(torch.split(K, self.head_size, dim=2), dim=0)
        V_ = torch.cat(torch.split(V, self.head_size, dim=2), dim=0)

        attn_weights = Q_.matmul(torch.transpose(K_, 1, 2))
        attn_weights = attn_weights / (K_.shape[-1] ** 0.5)

        # the clicks of a user without a click attend to nothing in particular
        # before
        time_mask = time_mask.unsqueeze(-1).expand(
            attn_weights.shape[0], -1, attn_weights.shape[-1]
        )
        # after
        time_mask = time_mask.unsqueeze(-1).repeat(self.head_num, 1, attn_weights.shape[-1])
        # end
        attn_mask = attn_mask.unsqueeze(0).expand(attn_weights.shape[0], -1, -1)
        paddings = torch.full_like(attn_weights, torch.finfo(attn_weights.dtype).min)
        attn_weights = torch.where(time_mask, paddings, attn_weights)
        attn_weights = torch.where(attn_mask, paddings, attn_weights)

        attn_weights = self.dropout(self.softmax(attn_weights))
        outputs = attn_weights.matmul(V_)
        # back to (users, clicks, hidden_size)
        return torch.cat(torch.split(outputs, Q.shape[0], dim=0), dim=2)
