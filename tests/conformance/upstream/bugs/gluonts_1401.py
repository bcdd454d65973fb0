"""The interpretable attention of a temporal fusion transformer: every head reads the same values."""

import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, d_hidden: int, n_head: int = 4, bias: bool = False):
        super().__init__()
        if d_hidden % n_head != 0:
            raise ValueError(f"hidden dim {d_hidden} cannot be split into {n_head} heads.")
        self.n_head = n_head
        self.d_head = d_hidden // n_head
        self.q_proj = nn.Linear(d_hidden, d_hidden, bias=bias)
        self.k_proj = nn.Linear(d_hidden, d_hidden, bias=bias)
        self.v_proj = nn.Linear(d_hidden, self.d_head, bias=bias)
        self.out_proj = nn.Linear(self.d_head, d_hidden, bias=bias)

    def _split_head(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.n_head, self.d_head).transpose(1, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor):
        """
        x: (batch, time, d_hidden). mask: (batch, time), 1 at observed time steps and 0 at missing ones.
        """
        q = self._split_head(self.q_proj(x))
        k = self._split_head(self.k_proj(x))
        v = self.v_proj(x).unsqueeze(1)
        score = torch.matmul(q, k.transpose(-2, -1)) / self.d_head**0.5
        mask = mask[:, None, None, :].bool()
        # before
        score = torch.where(mask, score, 1e-9)
        # after
        score = torch.where(mask, score, -torch.inf)
        # end
        weight = torch.softmax(score, dim=-1)
        attn_vec = torch.matmul(weight, v)
        attn_vec = attn_vec.mean(dim=1)
        return self.out_proj(attn_vec)
