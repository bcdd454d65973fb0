"""The additive attention of a mobile vision model: one query for the whole image, no product of keys and queries."""

import torch
from torch import nn


class EfficientAdditiveAttnetion(nn.Module):
    """
    Efficient Additive Attention module.
    Input: tensor in shape [B, N, D]
    Output: tensor in shape [B, N, token_dim]
    """

    def __init__(self, in_dims=512, token_dim=256, num_heads=2):
        super().__init__()
        self.to_query = nn.Linear(in_dims, token_dim * num_heads)
        self.to_key = nn.Linear(in_dims, token_dim * num_heads)
        self.w_g = nn.Parameter(torch.randn(token_dim * num_heads, 1))
        self.scale_factor = token_dim**-0.5
        self.Proj = nn.Linear(token_dim * num_heads, token_dim * num_heads)
        self.final = nn.Linear(token_dim * num_heads, token_dim)

    def forward(self, x):
        query = nn.functional.normalize(self.to_query(x), dim=-1)  # BxNxD
        key = nn.functional.normalize(self.to_key(x), dim=-1)  # BxNxD

        A = query @ self.w_g * self.scale_factor  # BxNx1
        # before
        A = A.softmax(dim=-1)
        # after
        A = A.softmax(dim=1)
        # end
        G = torch.sum(A * query, dim=1, keepdim=True)  # Bx1xD

        out = self.Proj(G * key) + query  # BxNxD
        return self.final(out)
