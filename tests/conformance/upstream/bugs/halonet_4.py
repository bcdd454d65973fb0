"""Attention of the blocks of an image to themselves and their surroundings."""

import torch
import torch.nn.functional as F
from torch import einsum, nn


class HaloAttention(nn.Module):
    def __init__(self, *, dim, block_size, halo_size, dim_head=16, heads=2):
        super().__init__()
        assert halo_size > 0, "halo size must be greater than 0"
        self.dim = dim
        self.heads = heads
        self.scale = dim_head**-0.5
        self.block_size = block_size
        self.halo_size = halo_size
        inner_dim = dim_head * heads
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim)

    def blocks(self, x, size, padding):
        windows = F.unfold(x, kernel_size=size, stride=self.block_size, padding=padding)
        b, _, count = windows.shape
        windows = windows.view(b, x.shape[1], size * size, count)
        return windows.permute(0, 3, 2, 1).reshape(b * count, size * size, x.shape[1])

    def forward(self, x):
        b, c, h, w = x.shape
        block, halo, heads = self.block_size, self.halo_size, self.heads
        assert h % block == 0, "height must be divisible by the block size"
        assert w % block == 0, "width must be divisible by the block size"
        # queries from the blocks, keys and values from the blocks and their halos
        q_inp = self.blocks(x, block, 0)
        kv_inp = self.blocks(x, block + halo * 2, halo)
        q = self.to_q(q_inp)
        k, v = self.to_kv(kv_inp).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
        q = q * self.scale
        sim = einsum("b h i d, b h j d -> b h i j", q, k)
        # the padding around the image is masked out
        mask = torch.ones(1, 1, h, w, device=x.device)
        mask = self.blocks(mask, block + halo * 2, halo).squeeze(-1).repeat(b, 1)
        # before
        mask = mask[:, None, None, :].bool()
        # after
        mask = ~mask[:, None, None, :].bool()
        # end
        sim.masked_fill_(mask, -torch.finfo(sim.dtype).max)
        attn = sim.softmax(dim=-1)
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        out = self.to_out(out.transpose(1, 2).flatten(2))
        out = out.view(b, h // block, w // block, block, block, c)
        return out.permute(0, 5, 1, 3, 2, 4).reshape(b, c, h, w)
