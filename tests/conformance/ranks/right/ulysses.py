"""Ulysses: an all-to-all gives each rank all tokens of some heads; key heads are repeated for more ranks than heads."""

import torch
import torch.distributed as dist
from torch import nn


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, split, join):
        ctx.split, ctx.join = split, join
        sent = [it.contiguous() for it in x.chunk(dist.get_world_size(), dim=split)]
        received = [torch.empty_like(it) for it in sent]
        for source in range(dist.get_world_size()):
            parts = sent if source == dist.get_rank() else None
            dist.scatter(received[source], parts, src=source)
        return torch.cat(received, dim=join)

    @staticmethod
    def backward(ctx, gradient):
        return AllToAll.apply(gradient, ctx.join, ctx.split), None, None


class UlyssesAttention(nn.Module):
    def __init__(self, d_model, num_heads, num_kv_heads):
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = d_model // num_heads
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(d_model, num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)

    def heads(self, x):
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.heads(self.q_proj(x)), self.heads(self.k_proj(x)), self.heads(self.v_proj(x))
        copies = max(dist.get_world_size() // self.num_kv_heads, 1)
        k, v = k.repeat_interleave(copies, dim=1), v.repeat_interleave(copies, dim=1)
        q, k, v = (AllToAll.apply(it, 1, 2) for it in (q, k, v))
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        scores = q @ k.transpose(-2, -1) / self.head_dim**0.5
        visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
        context = AllToAll.apply(weights @ v, 2, 1)
        return self.o_proj(context.transpose(1, 2).flatten(2))
