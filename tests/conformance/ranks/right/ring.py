"""A ring: keys and values travel from rank to rank, and partial results merge by their log-sum-exp."""

import torch
import torch.distributed as dist
from torch import nn


def exchange(tensor, step):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if ranks == 1:
        return tensor.clone()
    sent = tensor.contiguous()
    received = torch.empty_like(sent)
    calls = [
        dist.P2POp(dist.isend, sent, (rank + step) % ranks),
        dist.P2POp(dist.irecv, received, (rank - step) % ranks),
    ]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return received


class Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        return exchange(tensor, 1)

    @staticmethod
    def backward(ctx, gradient):
        return exchange(gradient, -1)


def block(q, k, v, hidden):
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(hidden, -1e30)
    lse = scores.logsumexp(dim=-1, keepdim=True)
    return torch.exp(scores - lse) @ v, lse


class RingAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)

    def positions(self, rank, tokens):
        return rank * tokens + torch.arange(tokens)

    def heads(self, x):
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, x):
        rank, ranks, T = dist.get_rank(), dist.get_world_size(), x.shape[1]
        q, k, v = self.heads(self.q_proj(x)), self.heads(self.k_proj(x)), self.heads(self.v_proj(x))
        rows = self.positions(rank, T)
        out = lse = None
        for step in range(ranks):
            owner = (rank - step) % ranks
            hidden = self.positions(owner, T)[None] > rows[:, None]
            block_out, block_lse = block(q, k, v, hidden)
            if out is None:
                out, lse = block_out, block_lse
            else:
                merged = torch.logaddexp(lse, block_lse)
                old, new = torch.exp(lse - merged), torch.exp(block_lse - merged)
                out = out * old + block_out * new
                lse = merged
            if step + 1 < ranks:
                k, v = Pass.apply(k), Pass.apply(v)
        return self.o_proj(out.transpose(1, 2).flatten(2))
