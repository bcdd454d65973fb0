"""Attention with keys of near windows and with a few summaries of the whole sequence."""

import torch
from torch import einsum, nn


def exists(val):
    return val is not None


def default(val, d):
    return val if exists(val) else d


class PreNorm(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fn = fn

    def forward(self, x, **kwargs):
        return self.fn(self.norm(x), **kwargs)


class LongShortAttention(nn.Module):
    def __init__(self, *, dim, heads=8, dim_head=64, window_size=128, r=1, dropout=0.0):
        super().__init__()
        self.heads = heads
        self.scale = dim_head**-0.5
        self.window_size = window_size
        inner_dim = heads * dim_head

        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim, bias=False)
        self.to_out = nn.Linear(inner_dim, dim)

        self.to_dynamic_proj = nn.Linear(dim_head, r, bias=False)
        self.local_norm = nn.LayerNorm(dim_head)
        self.global_norm = nn.LayerNorm(dim_head)
        self.attn_dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        """`mask` of shape (batch, tokens) is True at the tokens that are real."""
        b, n, _, h, device = *x.shape, self.heads, x.device
        mask_value = -torch.finfo(x.dtype).max

        q = self.to_q(x) * self.scale
        kv = self.to_kv(x)
        q, kv = (t.reshape(b, n, h, -1).transpose(1, 2).flatten(0, 1) for t in (q, kv))

        # near keys: those of the same window and of the windows beside it

        lkv = self.local_norm(kv)
        lsim = einsum("b i d, b j d -> b i j", q, lkv)
        window = torch.arange(n, device=device) // self.window_size
        far = (window[:, None] - window[None, :]).abs() > 1
        lsim = lsim.masked_fill(far, mask_value)

        if exists(mask):
            lmask = mask.repeat_interleave(h, dim=0)
            lsim = lsim.masked_fill(~lmask[:, None, :], mask_value)

        # far keys: r weighted means of all tokens

        pkv = self.to_dynamic_proj(kv)

        if exists(mask):
            # before
            pkv.masked_fill_(~mask[..., None], mask_value)
            # after
            pmask = mask.repeat_interleave(h, dim=0)
            pkv.masked_fill_(~pmask[..., None], mask_value)
            # end

        gkv = self.global_norm(einsum("b n d, b n r -> b r d", kv, pkv.softmax(dim=1)))
        gsim = einsum("b i d, b r d -> b i r", q, gkv)

        # attend to both

        attn = torch.cat((gsim, lsim), dim=-1).softmax(dim=-1)
        attn = self.attn_dropout(attn)
        out = einsum("b i j, b j d -> b i d", attn, torch.cat((gkv, lkv), dim=1))
        out = out.reshape(b, h, n, -1).transpose(1, 2).flatten(2)
        return self.to_out(out)
