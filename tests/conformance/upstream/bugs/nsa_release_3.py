"""Two of the branches of native sparse attention: compressed blocks for what is far, and a window for what is near."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

MaskMod = Callable[[Tensor, Tensor], Tensor]


def attend(q: Tensor, k: Tensor, v: Tensor, mask_mod: MaskMod) -> Tensor:
    """
    q: (B, G, R, T, D), the R query heads of G groups; k and v: (B, G, S, D)

    mask_mod takes the indices of queries and keys and is true where a query sees a key. A query that sees none gets 0.
    """
    q_idx = torch.arange(q.shape[-2], device=q.device)[:, None]
    kv_idx = torch.arange(k.shape[-2], device=q.device)[None, :]
    mask = mask_mod(q_idx, kv_idx)

    k, v = k.unsqueeze(2), v.unsqueeze(2)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    probs = torch.softmax(scores, dim=-1) * mask.any(dim=-1, keepdim=True)
    return probs @ v


class Compressor(nn.Module):
    """Makes one key or value of each full block of `block_size` tokens."""

    def __init__(self, head_dim: int, block_size: int):
        super().__init__()
        self.block_size = block_size
        self.pos_emb = nn.Parameter(torch.randn(block_size, head_dim) * 0.02)
        self.proj = nn.Linear(block_size * head_dim, head_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        B, G, T, D = x.shape
        n_blocks = T // self.block_size
        blocks = x[:, :, : n_blocks * self.block_size].reshape(B, G, n_blocks, self.block_size, D)
        return self.proj((blocks + self.pos_emb).flatten(3))


class NativeSparseAttention(nn.Module):
    def __init__(
        self,
        hidden_size: int,
        n_heads: int,
        n_kv_heads: int,
        block_size: int = 32,
        window_size: int = 512,
    ):
        super().__init__()
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads
        self.head_dim = hidden_size // n_heads
        self.block_size = block_size
        self.window_size = window_size

        self.q_proj = nn.Linear(hidden_size, n_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, n_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, n_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(n_heads * self.head_dim, hidden_size, bias=False)
        self.gate_proj = nn.Linear(hidden_size, 2 * n_heads, bias=False)
        self.compress_k = Compressor(self.head_dim, block_size)
        self.compress_v = Compressor(self.head_dim, block_size)

    def compressed_mask(self, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        last_of_block = (kv_idx + 1) * self.block_size - 1
        # before
        return last_of_block > q_idx
        # after
        return last_of_block <= q_idx
        # end

    def window_mask(self, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (kv_idx <= q_idx) & (q_idx - kv_idx < self.window_size)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        G, R = self.n_kv_heads, self.n_heads // self.n_kv_heads
        q = self.q_proj(x).view(B, T, G, R, self.head_dim).permute(0, 2, 3, 1, 4)
        k = self.k_proj(x).view(B, T, G, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(B, T, G, self.head_dim).transpose(1, 2)

        compressed = attend(q, self.compress_k(k), self.compress_v(v), self.compressed_mask)
        window = attend(q, k, v, self.window_mask)

        gates = self.gate_proj(x).sigmoid().view(B, T, 2, G, R, 1).permute(2, 0, 3, 4, 1, 5)
        out = gates[0] * compressed + gates[1] * window
        return self.o_proj(out.permute(0, 3, 1, 2, 4).reshape(B, T, -1))
