"""Tensor parallelism in Megatron's style: columns of the projections, rows of the output, one all-reduce each way."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class RowParallelLinear(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = nn.Parameter(
            torch.randn(out_features, in_features // dist.get_world_size()) * 0.1
        )
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, x):
        partial = F.linear(x, self.weight)
        return SumOverRanks.apply(partial) + self.bias


class ParallelAttention(nn.Module):
    def __init__(self, d_model, num_heads, num_kv_heads, dropout=0.0):
        super().__init__()
        ranks = dist.get_world_size()
        self.head_dim = d_model // num_heads
        self.q_proj = nn.Linear(d_model, d_model // ranks, bias=False)
        self.k_proj = nn.Linear(d_model, num_kv_heads * self.head_dim // ranks, bias=False)
        self.v_proj = nn.Linear(d_model, num_kv_heads * self.head_dim // ranks, bias=False)
        self.o_proj = RowParallelLinear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def heads(self, x):
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(self, x):
        x = CopyToRanks.apply(x)
        q, k, v = self.heads(self.q_proj(x)), self.heads(self.k_proj(x)), self.heads(self.v_proj(x))
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.dropout(self.o_proj(context.transpose(1, 2).flatten(2)))
