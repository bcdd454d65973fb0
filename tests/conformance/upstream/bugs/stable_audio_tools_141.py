"""Attention of the U-Net of an audio diffusion model: of the signal with itself, and with the text."""

from typing import Optional

import torch
from torch import Tensor, nn


class FeedForward(nn.Sequential):
    def __init__(self, features: int, multiplier: int):
        mid_features = features * multiplier
        super().__init__(
            nn.Linear(features, mid_features),
            nn.GELU(),
            nn.Linear(mid_features, features),
        )


class AttentionBase(nn.Module):
    def __init__(self, features: int, *, head_features: int, num_heads: int, out_features=None):
        super().__init__()
        self.scale = head_features**-0.5
        self.num_heads = num_heads
        mid_features = head_features * num_heads
        self.to_out = nn.Linear(mid_features, out_features or features)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Optional[Tensor] = None,
        is_causal: bool = False,
    ) -> Tensor:
        """mask: (b, m), True for the keys that are real."""
        # Split heads
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))

        # before
        if mask is not None:
            keep = mask[:, None, :, None].to(k.dtype)
            k, v = k * keep, v * keep
        sim = torch.einsum("... n d, ... m d -> ... n m", q, k) * self.scale
        # after
        sim = torch.einsum("... n d, ... m d -> ... n m", q, k) * self.scale
        if mask is not None:
            sim = sim.masked_fill(~mask[:, None, None, :], torch.finfo(sim.dtype).min)
        # end
        if is_causal:
            n, m = sim.shape[-2:]
            later = torch.ones(n, m, dtype=torch.bool, device=q.device).triu(m - n + 1)
            sim = sim.masked_fill(later, torch.finfo(sim.dtype).min)

        # Get attention matrix with softmax
        attn = sim.softmax(dim=-1, dtype=torch.promote_types(sim.dtype, torch.float32))

        # Compute values
        out = torch.einsum("... n m, ... m d -> ... n d", attn.to(v.dtype), v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class Attention(nn.Module):
    def __init__(
        self,
        features: int,
        *,
        head_features: int,
        num_heads: int,
        context_features: Optional[int] = None,
        causal: bool = False,
    ):
        super().__init__()
        self.context_features = context_features
        self.causal = causal
        mid_features = head_features * num_heads
        context_features = context_features or features

        self.norm = nn.LayerNorm(features)
        self.norm_context = nn.LayerNorm(context_features)
        self.to_q = nn.Linear(features, mid_features, bias=False)
        self.to_kv = nn.Linear(context_features, mid_features * 2, bias=False)
        self.attention = AttentionBase(features, head_features=head_features, num_heads=num_heads)

    def forward(
        self,
        x: Tensor,  # [b, n, c]
        context: Optional[Tensor] = None,  # [b, m, d]
        context_mask: Optional[Tensor] = None,  # [b, m], False is masked
        causal: Optional[bool] = False,
    ) -> Tensor:
        assert not self.context_features or context is not None, "You must provide a context"
        # Use context if provided
        context = x if context is None else context
        # Normalize then compute q from input and k, v from context
        x, context = self.norm(x), self.norm_context(context)
        q, k, v = (self.to_q(x), *self.to_kv(context).chunk(2, dim=-1))
        return self.attention(q, k, v, mask=context_mask, is_causal=self.causal or causal)


class TransformerBlock(nn.Module):
    def __init__(
        self,
        features: int,
        num_heads: int,
        head_features: int,
        multiplier: int = 2,
        context_features: Optional[int] = None,
    ):
        super().__init__()
        sizes = {"head_features": head_features, "num_heads": num_heads}
        self.attention = Attention(features, **sizes)
        self.cross_attention = None
        if context_features:
            self.cross_attention = Attention(features, context_features=context_features, **sizes)
        self.feed_forward = FeedForward(features, multiplier)

    def forward(self, x, *, context=None, context_mask=None):
        x = self.attention(x) + x
        if self.cross_attention is not None:
            x = self.cross_attention(x, context=context, context_mask=context_mask) + x
        return self.feed_forward(x) + x
