"""The cross-attention of an image generator to its prompt, with norms of queries and keys and rotary embeddings."""

from typing import Optional

import torch
import torch.nn as nn


def rotate_half(x):
    x_real, x_imag = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack([-x_imag, x_real], dim=-1).flatten(3)


def get_1d_rotary_pos_embed(dim: int, pos: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    freqs = 1.0 / 10000.0 ** (torch.arange(0, dim, 2, device=pos.device).float() / dim)
    freqs = torch.outer(pos.float(), freqs)
    return freqs.cos().repeat_interleave(2, dim=1), freqs.sin().repeat_interleave(2, dim=1)


def apply_rotary_emb(x: torch.Tensor, freqs_cis: tuple[torch.Tensor, torch.Tensor]):
    """x: (B, S, H, D). freqs_cis: the cosines and sines, each of shape (S, D)"""
    cos, sin = (part[None, :, None, :] for part in freqs_cis)
    return (x.float() * cos + rotate_half(x.float()) * sin).type_as(x)


class CrossAttention(nn.Module):
    """
    Use QK Normalization.

    Args:
        qdim: channels of the image tokens.
        kdim: channels of the prompt tokens.
        num_heads: number of heads.
        qk_norm: whether queries and keys are normalized.
    """

    def __init__(
        self,
        qdim: int,
        kdim: int,
        num_heads: int,
        qkv_bias: bool = True,
        qk_norm: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ):
        super().__init__()
        self.qdim = qdim
        self.kdim = kdim
        self.num_heads = num_heads
        assert self.qdim % num_heads == 0, "self.qdim must be divisible by num_heads"
        self.head_dim = self.qdim // num_heads
        self.scale = self.head_dim**-0.5
        self.q_proj = nn.Linear(qdim, qdim, bias=qkv_bias)
        self.kv_proj = nn.Linear(kdim, 2 * qdim, bias=qkv_bias)
        self.q_norm = nn.LayerNorm(self.head_dim, eps=1e-6) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(self.head_dim, eps=1e-6) if qk_norm else nn.Identity()
        self.attn_drop = nn.Dropout(attn_drop)
        self.out_proj = nn.Linear(qdim, qdim, bias=qkv_bias)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(
        self, x: torch.Tensor, y: torch.Tensor, y_mask: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        """
        x: (batch, image tokens, qdim). y: (batch, prompt tokens, kdim)
        y_mask: True at prompt tokens and False at padding, of shape (batch, prompt tokens)
        """
        b, s1, c = x.shape  # [b, s1, D]
        _, s2, _ = y.shape  # [b, s2, kdim]

        q = self.q_proj(x).view(b, s1, self.num_heads, self.head_dim)  # [b, s1, h, d]
        kv = self.kv_proj(y).view(b, s2, 2, self.num_heads, self.head_dim)  # [b, s2, 2, h, d]
        k, v = kv.unbind(dim=2)
        # before
        q = self.q_norm(q).half()
        k = self.k_norm(k).half()
        # after
        q = self.q_norm(q).to(x.dtype)
        k = self.k_norm(k).to(x.dtype)
        # end

        # Apply RoPE if needed: only the image tokens have places
        freqs_cis_img = get_1d_rotary_pos_embed(self.head_dim, torch.arange(s1, device=x.device))
        q = apply_rotary_emb(q, freqs_cis_img)

        q = q.transpose(-2, -3)  # [b, h, s1, d]
        k = k.permute(0, 2, 3, 1)  # [b, h, d, s2]
        attn = (q * self.scale) @ k  # [b, h, s1, s2]
        if y_mask is not None:
            attn = attn.masked_fill(~y_mask.bool()[:, None, None, :], torch.finfo(attn.dtype).min)
        attn = attn.softmax(dim=-1).to(v.dtype)
        attn = self.attn_drop(attn)
        x = attn @ v.transpose(-2, -3)  # [b, h, s1, d]
        context = x.transpose(1, 2).reshape(b, s1, c)
        return self.proj_drop(self.out_proj(context))
