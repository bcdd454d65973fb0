"""Linear attention, computed in chunks, divided by the sum of all weights so far (flash-linear-attention)."""

import torch
import torch.nn.functional as F
from torch import nn


def chunk_global_cumsum(x, chunk_size=4, reverse=False):
    """Return the sums along the tokens of (batch, tokens, heads, dim): a kernel, which writes to a new tensor."""
    with torch.no_grad():
        if reverse:
            return chunk_global_cumsum(x.flip(1), chunk_size).flip(1)
        out = torch.empty_like(x)
        carry = torch.zeros_like(x[:, 0])
        for start in range(0, x.shape[1], chunk_size):
            part = x[:, start : start + chunk_size].cumsum(1) + carry[:, None]
            out[:, start : start + chunk_size] = part
            carry = part[:, -1]
        return out


class GlobalCumsum(torch.autograd.Function):
    """The kernel with its gradient, which is the sum from the other end."""

    @staticmethod
    def forward(ctx, x):
        return chunk_global_cumsum(x)

    @staticmethod
    def backward(ctx, grad):
        return chunk_global_cumsum(grad, reverse=True)


def normalize_output(q, k, o):
    # before
    k_cum = chunk_global_cumsum(k)
    # after
    k_cum = GlobalCumsum.apply(k)
    # end
    z = (q * k_cum).sum(-1, keepdim=True)
    return o / (z + 1e-10)


def chunk_linear_attn(q, k, v, chunk_size=4, normalize=True):
    """q, k: (batch, tokens, heads, dim), with no negative numbers. v: (batch, tokens, heads, dim)."""
    state = q.new_zeros(q.shape[0], q.shape[2], k.shape[3], v.shape[3])
    outputs = []
    for start in range(0, q.shape[1], chunk_size):
        qc, kc, vc = (x[:, start : start + chunk_size] for x in (q, k, v))
        inter = torch.einsum("bchk,bhkv->bchv", qc, state)
        intra = torch.einsum("bihk,bjhk->bhij", qc, kc).tril()
        intra = torch.einsum("bhij,bjhv->bihv", intra, vc)
        outputs.append(inter + intra)
        state = state + torch.einsum("bchk,bchv->bhkv", kc, vc)
    o = torch.cat(outputs, dim=1)
    return normalize_output(q, k, o) if normalize else o


class LinearAttention(nn.Module):
    """
    Args:
        hidden_size: Size of a token.
        num_heads: Number of heads.
        do_norm: Whether the weights of a token sum to one.
    """

    def __init__(self, hidden_size: int, num_heads: int, do_norm: bool = True):
        super().__init__()
        self.num_heads = num_heads
        self.do_norm = do_norm
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        q = self.q_proj(hidden_states).unflatten(-1, (self.num_heads, -1))
        k = self.k_proj(hidden_states).unflatten(-1, (self.num_heads, -1))
        v = self.v_proj(hidden_states).unflatten(-1, (self.num_heads, -1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        o = chunk_linear_attn(q, k, v, normalize=self.do_norm)
        return self.o_proj(o.flatten(2))
