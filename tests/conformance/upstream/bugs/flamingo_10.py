"""Cross-attention of text to the image that precedes it, and to none before the first image."""

import torch
from torch import einsum, nn


class MaskedCrossAttention(nn.Module):
    def __init__(self, *, dim, dim_head=64, heads=8):
        super().__init__()
        self.scale = dim_head**-0.5
        self.heads = heads
        inner_dim = dim_head * heads
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim, bias=False)

    def forward(self, x, media, media_locations):
        b, t, m = media.shape[:3]
        n, h = x.shape[1], self.heads
        x = self.norm(x)
        q = self.to_q(x).reshape(b, n, h, -1).transpose(1, 2)
        k, v = self.to_kv(media.reshape(b, t * m, -1)).chunk(2, dim=-1)
        k, v = (x.reshape(b, t * m, h, -1).transpose(1, 2) for x in (k, v))
        q = q * self.scale
        sim = einsum("b h i d, b h j d -> b h i j", q, k)
        # at each token, the number of images so far
        text_time = media_locations.cumsum(dim=-1)
        media_time = torch.arange(t, device=x.device) + 1
        text_to_media_mask = text_time[:, None, :, None] == media_time.repeat_interleave(m)
        sim = sim.masked_fill(~text_to_media_mask, -torch.finfo(sim.dtype).max)
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)
        # text without a preceding image attends to nothing
        text_without_media_mask = (text_time == 0)[:, None, :, None]
        # before
        attn.masked_fill(text_without_media_mask, 0.0)
        # after
        attn = attn.masked_fill(text_without_media_mask, 0.0)
        # end
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        out = out.transpose(1, 2).reshape(b, n, -1)
        return self.to_out(out)
