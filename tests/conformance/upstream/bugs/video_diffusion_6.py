"""Attention over the frames of a video; some videos of a batch are trained as separate images (video diffusion)."""

import torch
from torch import einsum, nn


def exists(x):
    return x is not None


class Attention(nn.Module):
    def __init__(self, dim, heads=4, dim_head=32):
        super().__init__()
        self.scale = dim_head**-0.5
        self.heads = heads
        hidden_dim = dim_head * heads
        self.to_qkv = nn.Linear(dim, hidden_dim * 3, bias=False)
        self.to_out = nn.Linear(hidden_dim, dim, bias=False)

    def forward(self, x, pos_bias=None, focus_present_mask=None):
        """
        x: (batch, pixels, frames, dim). pos_bias: (heads, frames, frames).
        focus_present_mask: true for the videos whose frames attend only to themselves, (batch,).
        """
        n, device = x.shape[-2], x.device

        qkv = self.to_qkv(x).chunk(3, dim=-1)

        if exists(focus_present_mask) and focus_present_mask.all():
            # if all samples focus on the present, the values are the result
            values = qkv[-1]
            return self.to_out(values)

        # split out heads
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for t in qkv)
        q = q * self.scale

        sim = einsum("... h i d, ... h j d -> ... h i j", q, k)

        # relative positional bias
        if exists(pos_bias):
            sim = sim + pos_bias

        if exists(focus_present_mask) and not (~focus_present_mask).all():
            attend_all_mask = torch.ones((n, n), device=device, dtype=torch.bool)
            attend_self_mask = torch.eye(n, device=device, dtype=torch.bool)

            mask = torch.where(
                focus_present_mask.view(-1, 1, 1, 1, 1),
                attend_self_mask.view(1, 1, 1, n, n),
                attend_all_mask.view(1, 1, 1, n, n),
            )
            # before
            sim = sim.masked_fill(mask, -torch.finfo(sim.dtype).max)
            # after
            sim = sim.masked_fill(~mask, -torch.finfo(sim.dtype).max)
            # end

        # numerical stability
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        attn = sim.softmax(dim=-1)

        # aggregate values
        out = einsum("... h i j, ... h j d -> ... h i d", attn, v)
        out = out.transpose(-2, -3).flatten(-2)
        return self.to_out(out)
