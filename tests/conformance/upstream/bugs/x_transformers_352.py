"""Attention by the cosine similarity of queries and keys, with learned scales for each feature of each head."""

import torch
import torch.nn.functional as F
from torch import nn


def l2norm(t, groups=1):
    shape = t.shape
    t = t.reshape(*shape[:-1], groups, -1)
    return F.normalize(t, p=2, dim=-1).reshape(shape)


class Attention(nn.Module):
    def __init__(
        self,
        dim,
        dim_head=64,
        heads=8,
        causal=False,
        qk_norm=True,
        qk_norm_groups=1,
        qk_norm_scale=10,
        qk_norm_dim_scale=True,
    ):
        super().__init__()
        inner = dim_head * heads
        self.heads = heads
        self.causal = causal
        self.qk_norm = qk_norm
        self.qk_norm_groups = qk_norm_groups
        self.scale = qk_norm_scale if qk_norm else dim_head**-0.5
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_k = nn.Linear(dim, inner, bias=False)
        self.to_v = nn.Linear(dim, inner, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)

        self.qk_norm_q_scale = self.qk_norm_k_scale = 1
        if qk_norm and qk_norm_dim_scale:
            self.qk_norm_q_scale = nn.Parameter(torch.ones(heads, 1, dim_head))
            self.qk_norm_k_scale = nn.Parameter(torch.ones(heads, 1, dim_head))

    def forward(self, x, mask=None):
        b, n, _ = x.shape
        q, k, v = (f(x).view(b, n, self.heads, -1) for f in (self.to_q, self.to_k, self.to_v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if self.qk_norm:
            q, k = (l2norm(t, groups=self.qk_norm_groups) for t in (q, k))
            # before
            q, k = q.to(v.dtype), k.to(v.dtype)
            # after
            q, k = q * self.qk_norm_q_scale, k * self.qk_norm_k_scale
            # end

        sim = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        mask_value = -torch.finfo(sim.dtype).max
        if mask is not None:
            sim = sim.masked_fill(~mask[:, None, None, :], mask_value)
        if self.causal:
            causal_mask = torch.ones((n, n), dtype=torch.bool, device=x.device).triu(1)
            sim = sim.masked_fill(causal_mask, mask_value)
        attn = F.softmax(sim, dim=-1)
        out = torch.einsum("bhij,bhjd->bhid", attn, v).transpose(1, 2).reshape(b, n, -1)
        return self.to_out(out)
