"""The attention of a video encoder, with rotary embeddings of the frame, the row and the column of a patch."""

import torch
import torch.nn.functional as F
from torch import nn


def rotate_queries_or_keys(x, pos):
    """x: (B, num_heads, N, D). pos: the position of each token along one axis, of shape (N)."""
    B, num_heads, N, D = x.size()
    assert D % 2 == 0, "Embedding dimension must be a multiple of 2 for block matrix rotation"

    omega = torch.arange(D // 2, dtype=x.dtype, device=x.device)
    omega = 1.0 / 10000 ** (omega / (D / 2.0))
    freq = torch.einsum("..., f -> ... f", pos, omega)

    # before
    emb_sin = freq.sin().repeat(1, 2)
    emb_cos = freq.cos().repeat(1, 2)
    # after
    emb_sin = freq.sin().repeat_interleave(2, dim=-1)
    emb_cos = freq.cos().repeat_interleave(2, dim=-1)
    # end

    y1, y2 = x.unflatten(-1, (-1, 2)).unbind(dim=-1)
    y = torch.stack((-y2, y1), dim=-1).flatten(-2)
    return (x * emb_cos) + (y * emb_sin)


class RoPEAttention(nn.Module):
    """x: the patches of a video, frame by frame, of shape (B, frames * grid_size ** 2, dim)."""

    def __init__(self, dim, num_heads=8, qkv_bias=False, grid_size=14):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.d_dim = int(2 * ((head_dim // 3) // 2))
        self.h_dim = int(2 * ((head_dim // 3) // 2))
        self.w_dim = int(2 * ((head_dim // 3) // 2))
        self.grid_size = grid_size

    def separate_positions(self, ids):
        tokens_per_frame = self.grid_size**2
        frame_ids = ids // tokens_per_frame
        ids = ids - tokens_per_frame * frame_ids
        return frame_ids, ids // self.grid_size, ids % self.grid_size

    def rotate(self, x, positions):
        parts, s = [], 0
        for pos, dim in zip(positions, (self.d_dim, self.h_dim, self.w_dim)):
            parts.append(rotate_queries_or_keys(x[..., s : s + dim], pos=pos.to(x.dtype)))
            s += dim
        return torch.cat([*parts, x[..., s:]], dim=-1)

    def forward(self, x):
        B, N, C = x.size()
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        positions = self.separate_positions(torch.arange(N, device=x.device))
        q, k = self.rotate(q, positions), self.rotate(k, positions)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(B, N, C))
