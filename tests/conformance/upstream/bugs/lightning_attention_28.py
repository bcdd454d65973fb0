"""Lightning attention: causal linear attention with a decay for each head, computed block by block."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def get_slopes(n: int) -> list[float]:
    if math.log2(n).is_integer():
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]
    closest = 2 ** math.floor(math.log2(n))
    return get_slopes(closest) + get_slopes(2 * closest)[0::2][: n - closest]


def _fwd_diag(q, k, v, o, s, BLOCK, NUM_BLOCK):
    """Queries and keys of the same block."""
    index = torch.arange(BLOCK, device=q.device)
    diff = (index[:, None] - index[None, :]).to(q.dtype)
    decay = torch.where(diff >= 0, -s * diff, float("-inf")).exp()
    for i in range(NUM_BLOCK):
        rows = slice(i * BLOCK, (i + 1) * BLOCK)
        qk = q[:, :, rows] @ k[:, :, rows].transpose(-1, -2) * decay
        o[:, :, rows] = qk @ v[:, :, rows]


def _fwd_kv(k, v, s, BLOCK, NUM_BLOCK):
    """For each block, the state that the blocks before it leave."""
    array = torch.arange(BLOCK, device=k.device).to(k.dtype)
    k_decay = torch.exp(-s * (BLOCK - array[:, None]))
    block_decay = torch.exp(-s * BLOCK)
    kv = k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
    states = []
    for i in range(NUM_BLOCK):
        rows = slice(i * BLOCK, (i + 1) * BLOCK)
        states.append(kv)
        kv = block_decay * kv + (k[:, :, rows] * k_decay).transpose(-1, -2) @ v[:, :, rows]
    return states


def _fwd_none_diag(q, o, s, states, BLOCK):
    array = torch.arange(BLOCK, device=q.device).to(q.dtype)
    q_decay = torch.exp(-s * array[:, None])
    for i, kv in enumerate(states):
        rows = slice(i * BLOCK, (i + 1) * BLOCK)
        o[:, :, rows] = o[:, :, rows] + q[:, :, rows] @ kv * q_decay


def _forward(q, k, v, s, BLOCK):
    b, h, n, d = q.shape
    e = v.shape[-1]
    o = torch.empty((b, h, n, e), dtype=q.dtype, device=q.device)
    NUM_BLOCK = n // BLOCK
    s = s.view(1, h, 1, 1).to(q.dtype)

    _fwd_diag(q, k, v, o, s, BLOCK, NUM_BLOCK)
    states = _fwd_kv(k, v, s, BLOCK, NUM_BLOCK)
    _fwd_none_diag(q, o, s, states, BLOCK)
    return o


def lightning_attn2_parallel(q, k, v, s, BLOCK=256):
    """
    q, k: b, h, n, d
    v: b, h, n, e
    s: h, the slopes of the decay
    """
    # before
    return _forward(q, k, v, s, BLOCK)
    # after
    n = q.shape[2]
    pad = (BLOCK - n % BLOCK) % BLOCK
    if pad > 0:
        q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
    return _forward(q, k, v, s, BLOCK)[:, :, :n]
    # end


class SimpleRMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.scale = dim**0.5
        self.eps = eps

    def forward(self, x):
        return x / (x.norm(p=2, dim=-1, keepdim=True) / self.scale + self.eps)


class NormLinearAttention(nn.Module):
    """Linear attention that is normalized by a norm of its output, without a softmax."""

    def __init__(
        self,
        embed_dim: int,
        hidden_dim: int,
        num_heads: int,
        linear_act_fun: str = "silu",
        block: int = 256,
        bias: bool = False,
        layer_idx: int = 0,
        num_layers: int = 24,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_dim // num_heads
        self.block = block
        self.linear_act = {"silu": F.silu, "relu": F.relu}[linear_act_fun]
        self.qkvu_proj = nn.Linear(embed_dim, 4 * hidden_dim, bias=bias)
        self.norm = SimpleRMSNorm(hidden_dim)
        self.out_proj = nn.Linear(hidden_dim, embed_dim, bias=bias)
        slopes = torch.tensor(get_slopes(num_heads))
        # Higher layers look further back.
        slopes = slopes * (1 - layer_idx / (num_layers - 1) + 1e-5)
        self.register_buffer("slope_rate", slopes, persistent=False)

    def forward(self, x, attn_padding_mask=None):
        """
        x: b, n, embed_dim
        attn_padding_mask: b, n, 1 for tokens and 0 for padding
        """
        b, n, _ = x.shape
        q, k, v, u = self.qkvu_proj(x).chunk(4, dim=-1)
        q, k, v = (t.view(b, n, self.num_heads, -1).transpose(1, 2) for t in (q, k, v))
        q, k = self.linear_act(q), self.linear_act(k)
        if attn_padding_mask is not None:
            v = v.masked_fill((1 - attn_padding_mask.long()).bool()[:, None, :, None], 0)

        output = lightning_attn2_parallel(q, k, v, self.slope_rate, self.block)
        output = output.transpose(1, 2).reshape(b, n, -1)
        output = u * self.norm(output)
        return self.out_proj(output)
