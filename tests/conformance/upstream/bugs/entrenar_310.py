"""A block of a decoder-only transformer, for the training of small language models."""

import torch
from torch import Tensor, nn


class RmsNorm(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def batched_rope(x: Tensor, theta: float) -> Tensor:
    """Rotate the halves of each head. x: [batch, heads, seq, head_dim]"""
    seq, head_dim = x.shape[-2:]
    freqs = theta ** -(torch.arange(0, head_dim, 2, device=x.device) / head_dim)
    angles = torch.outer(torch.arange(seq, device=x.device), freqs).double()
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    x0, x1 = x.chunk(2, dim=-1)
    return torch.cat([x0 * cos - x1 * sin, x0 * sin + x1 * cos], dim=-1)


def batched_softmax_forward(scores: Tensor) -> Tensor:
    """Softmax of each row, with the maximum subtracted."""
    exps = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return exps / exps.sum(dim=-1, keepdim=True)


class TransformerBlock(nn.Module):
    """
    norm → attention → residual → norm → SwiGLU → residual

    hidden_size: width of the block
    num_heads: number of heads of the queries
    num_kv_heads: number of heads of the keys and values
    intermediate_size: width of the feed-forward layer
    rope_theta: base of the rotary positions
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        intermediate_size: int,
        rope_theta: float = 10_000.0,
    ):
        super().__init__()
        assert num_heads % num_kv_heads == 0
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = hidden_size // num_heads
        self.rope_theta = rope_theta
        kv_hidden_size = num_kv_heads * self.head_dim
        self.input_norm = RmsNorm(hidden_size)
        self.w_q = nn.Linear(hidden_size, hidden_size, bias=False)
        self.w_k = nn.Linear(hidden_size, kv_hidden_size, bias=False)
        self.w_v = nn.Linear(hidden_size, kv_hidden_size, bias=False)
        self.w_o = nn.Linear(hidden_size, hidden_size, bias=False)
        self.post_attn_norm = RmsNorm(hidden_size)
        self.w_gate = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.w_up = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.w_down = nn.Linear(intermediate_size, hidden_size, bias=False)

    def _interleaved_to_batched(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)

    def compute_attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Steps 1-3: layouts and positions
        q = batched_rope(self._interleaved_to_batched(q, self.num_heads), self.rope_theta)
        k = batched_rope(self._interleaved_to_batched(k, self.num_kv_heads), self.rope_theta)
        v = self._interleaved_to_batched(v, self.num_kv_heads)

        # Step 4: heads of keys and values for all heads of queries
        groups = self.num_heads // self.num_kv_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)

        # Step 5: scores
        attn_scores = (q @ k.transpose(-2, -1)) / self.head_dim**0.5

        # Step 6: row-wise softmax
        # before
        attn_weights = batched_softmax_forward(attn_scores)
        # after
        seq = attn_scores.shape[-1]
        future = torch.ones(seq, seq, dtype=torch.bool, device=q.device).triu(1)
        attn_weights = batched_softmax_forward(attn_scores.masked_fill(future, float("-inf")))
        # end

        # Step 7: values, back to [batch, seq, hidden]
        return (attn_weights @ v).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, seq, hidden_size]"""
        normed = self.input_norm(x)
        attn_out = self.compute_attention(self.w_q(normed), self.w_k(normed), self.w_v(normed))
        x = x + self.w_o(attn_out)
        normed = self.post_attn_norm(x)
        return x + self.w_down(nn.functional.silu(self.w_gate(normed)) * self.w_up(normed))
