"""The self-attention of a question answering network, with a matrix of its own for each head."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.key_dim = d_model // n_heads
        self.value_dim = d_model // n_heads
        shape = (n_heads, d_model, self.key_dim)
        self.W_q = nn.Parameter(nn.init.xavier_uniform_(torch.empty(shape)))
        self.W_k = nn.Parameter(nn.init.xavier_uniform_(torch.empty(shape)))
        self.W_v = nn.Parameter(nn.init.xavier_uniform_(torch.empty(shape)))
        self.W_o = nn.Linear(n_heads * self.value_dim, d_model, bias=False)

    def forward(self, x, mask=None):
        """
        x: (batch, length, d_model)
        mask: 1 at words and 0 at padding, of shape (batch, length)
        """
        batch_size, length, _ = x.size()
        heads = []
        for i in range(self.n_heads):
            q = torch.matmul(x, self.W_q[i])
            k = torch.matmul(x, self.W_k[i])
            v = torch.matmul(x, self.W_v[i])
            scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(self.key_dim)
            if mask is not None:
                scores = scores.masked_fill(mask.unsqueeze(1) == 0, float("-inf"))
            heads.append(torch.bmm(F.softmax(scores, dim=-1), v))
        heads = torch.stack(heads)  # (n_heads, batch, length, value_dim)
        # before
        x = heads.view(batch_size, length, -1)
        # after
        x = heads.permute(1, 2, 0, 3).contiguous().view(batch_size, length, -1)
        # end
        return self.W_o(x)
