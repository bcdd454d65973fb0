"""Attention of a video diffusion model to a text prompt and to an image prompt, in two branches (VideoCrafter)."""

import torch
from torch import nn


def exists(val):
    return val is not None


class CrossAttention(nn.Module):
    """
    query_dim: size of a pixel. context_dim: size of a token of the prompts.
    img_cross_attention: whether the tokens after the first text_context_length are those of an image.
    """

    def __init__(
        self,
        query_dim,
        context_dim=None,
        heads=8,
        dim_head=64,
        dropout=0.0,
        img_cross_attention=False,
        text_context_length=77,
        image_cross_attention_scale=1.0,
    ):
        super().__init__()
        inner_dim = dim_head * heads
        context_dim = context_dim if exists(context_dim) else query_dim
        self.scale = dim_head**-0.5
        self.heads = heads
        self.to_q = nn.Linear(query_dim, inner_dim, bias=False)
        self.to_k = nn.Linear(context_dim, inner_dim, bias=False)
        self.to_v = nn.Linear(context_dim, inner_dim, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, query_dim), nn.Dropout(dropout))
        self.img_cross_attention = img_cross_attention
        self.text_context_length = text_context_length
        self.image_cross_attention_scale = image_cross_attention_scale
        if img_cross_attention:
            self.to_k_ip = nn.Linear(context_dim, inner_dim, bias=False)
            self.to_v_ip = nn.Linear(context_dim, inner_dim, bias=False)

    def split(self, t):
        """b n (h d) -> (b h) n d"""
        return t.unflatten(-1, (self.heads, -1)).transpose(1, 2).flatten(0, 1)

    def merge(self, t):
        """(b h) n d -> b n (h d)"""
        return t.unflatten(0, (-1, self.heads)).transpose(1, 2).flatten(2)

    def forward(self, x, context=None):
        """x: (batch, pixels, query_dim). context: the text, then the image, (batch, tokens, context_dim)."""
        k_ip, v_ip = None, None
        q = self.split(self.to_q(x))
        context = context if exists(context) else x
        if self.img_cross_attention:
            context, context_img = (
                context[:, : self.text_context_length, :],
                context[:, self.text_context_length :, :],
            )
            k_ip = self.split(self.to_k_ip(context_img))
            v_ip = self.split(self.to_v_ip(context_img))
        k = self.split(self.to_k(context))
        v = self.split(self.to_v(context))

        sim = torch.einsum("bid,bjd->bij", q, k) * self.scale
        out = torch.einsum("bij,bjd->bid", sim.softmax(dim=-1), v)
        out = self.merge(out)

        if k_ip is not None:
            sim_ip = torch.einsum("bid,bjd->bij", q, k_ip) * self.scale
            out_ip = torch.einsum("bij,bjd->bid", sim_ip.softmax(dim=-1), v_ip)
            # before
            out_ip = self.merge(out)
            # after
            out_ip = self.merge(out_ip)
            # end
            out = out + self.image_cross_attention_scale * out_ip
        return self.to_out(out)
