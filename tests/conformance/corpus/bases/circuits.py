"""Each projection is one parameter with a matrix for each head, as in interpretability research."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, d_model, n_heads, d_head=6):
        super().__init__()
        self.d_head = d_head
        self.W_Q = nn.Parameter(torch.empty(n_heads, d_model, d_head))
        self.W_K = nn.Parameter(torch.empty(n_heads, d_model, d_head))
        self.W_V = nn.Parameter(torch.empty(n_heads, d_model, d_head))
        self.W_O = nn.Parameter(torch.empty(n_heads, d_head, d_model))
        self.b_Q = nn.Parameter(torch.zeros(n_heads, d_head))
        self.b_K = nn.Parameter(torch.zeros(n_heads, d_head))
        self.b_V = nn.Parameter(torch.zeros(n_heads, d_head))
        self.b_O = nn.Parameter(torch.zeros(d_model))
        for weight in (self.W_Q, self.W_K, self.W_V, self.W_O):
            nn.init.normal_(weight, std=d_model**-0.5)
        self.register_buffer("IGNORE", torch.tensor(float("-inf")))

    def apply_causal_mask(self, attn_scores):
        all_ones = torch.ones(attn_scores.size(-2), attn_scores.size(-1), device=attn_scores.device)
        mask = torch.triu(all_ones, diagonal=1).bool()
        return attn_scores.masked_fill(mask, self.IGNORE)

    def forward(self, resid):
        q = torch.einsum("bsm,nmh->bsnh", resid, self.W_Q) + self.b_Q
        k = torch.einsum("bsm,nmh->bsnh", resid, self.W_K) + self.b_K
        v = torch.einsum("bsm,nmh->bsnh", resid, self.W_V) + self.b_V
        attn_scores = torch.einsum("bqnh,bknh->bnqk", q, k)
        attn_scores = self.apply_causal_mask(attn_scores / self.d_head**0.5)
        pattern = attn_scores.softmax(-1)
        z = torch.einsum("bknh,bnqk->bqnh", v, pattern)
        return torch.einsum("bqnh,nhm->bqm", z, self.W_O) + self.b_O
