"""Multi-query attention of a mobile vision model, on feature maps."""

from typing import Optional

import torch
from torch import nn


class MultiQueryAttentionV2(nn.Module):
    """Multi Query Attention: one head of keys and values for all heads of queries."""

    def __init__(
        self,
        dim: int,
        dim_out: Optional[int] = None,
        num_heads: int = 8,
        key_dim: int = 64,
        value_dim: int = 64,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ):
        super().__init__()
        dim_out = dim_out or dim
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.scale = key_dim**-0.5
        self.query_proj = nn.Parameter(torch.randn([num_heads, key_dim, dim]) * dim**-0.5)
        self.key_proj = nn.Parameter(torch.randn([dim, key_dim]) * dim**-0.5)
        self.value_proj = nn.Parameter(torch.randn([dim, value_dim]) * dim**-0.5)
        self.attn_drop = nn.Dropout(attn_drop)
        self.out_proj = nn.Parameter(torch.randn([dim_out, num_heads, value_dim]) * value_dim**-0.5)
        self.proj_drop = nn.Dropout(proj_drop)

    @staticmethod
    def _reshape_input(t):
        """Reshapes a tensor to three dimensions, keeping the batch and channels."""
        return t.flatten(2).transpose(1, 2)

    def forward(self, x, m: Optional[torch.Tensor] = None):
        """x, m: feature maps, of shape (batch, dim, height, width)."""
        b, _, h, w = x.shape
        m = m if m is not None else x
        reshaped_x, reshaped_m = self._reshape_input(x), self._reshape_input(m)

        q = torch.einsum("bnd,hkd->bnhk", reshaped_x, self.query_proj)
        k = torch.einsum("bmd,dk->bmk", reshaped_m, self.key_proj)
        # before
        attn = torch.einsum("bnhk,bmk->bnhm", q, k)
        # after
        attn = torch.einsum("bnhk,bmk->bnhm", q, k) * self.scale
        # end
        attn = self.attn_drop(attn.softmax(dim=-1))

        v = torch.einsum("bmd,dv->bmv", reshaped_m, self.value_proj)
        o = torch.einsum("bnhm,bmv->bnhv", attn, v)
        result = torch.einsum("bnhv,dhv->bdn", o, self.out_proj)
        return self.proj_drop(result).reshape(b, -1, h, w)
