"""The blocks of a vision encoder that reads the patches of several images as one sequence."""

import torch
import torch.nn.functional as F
from torch import nn


def precompute_freqs_cis_2d(dim: int, height: int, width: int, theta: float = 10000.0):
    """Return the rotations of the patches of an image, of shape (height * width, dim / 2)."""
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim))
    rows = torch.outer(torch.arange(height).float(), freqs[::2])
    columns = torch.outer(torch.arange(width).float(), freqs[1::2])
    angles = torch.cat(
        [rows[:, None].expand(-1, width, -1), columns[None].expand(height, -1, -1)], dim=-1
    )
    return torch.polar(torch.ones_like(angles), angles).flatten(0, 1)


def apply_rotary_emb(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    """x: (batch, patches, heads, head_dim)."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * freqs_cis[:, None]).flatten(-2).to(x.dtype)


def block_diagonal_mask(seqlens: list[int]) -> torch.Tensor:
    """Return which patches are of the same image, of shape (patches, patches)."""
    image = torch.repeat_interleave(torch.arange(len(seqlens)), torch.tensor(seqlens))
    return image[:, None] == image


class Attention(nn.Module):
    def __init__(self, dim: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x, freqs_cis, mask=None):
        xq = apply_rotary_emb(self.wq(x).unflatten(-1, (self.n_heads, -1)), freqs_cis)
        xk = apply_rotary_emb(self.wk(x).unflatten(-1, (self.n_heads, -1)), freqs_cis)
        xv = self.wv(x).unflatten(-1, (self.n_heads, -1))
        xq, xk, xv = (t.transpose(1, 2) for t in (xq, xk, xv))
        output = F.scaled_dot_product_attention(xq, xk, xv, attn_mask=mask)
        return self.wo(output.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden_dim: int):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    def __init__(self, dim: int, hidden_dim: int, n_heads: int, norm_eps: float = 1e-5):
        super().__init__()
        self.attention = Attention(dim, n_heads)
        self.feed_forward = FeedForward(dim, hidden_dim)
        self.attention_norm = nn.LayerNorm(dim, eps=norm_eps)
        self.ffn_norm = nn.LayerNorm(dim, eps=norm_eps)

    def forward(
        self, x: torch.Tensor, freqs_cis: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """
        x: (batch, patches, dim). freqs_cis: (patches, head_dim / 2).
        mask: (patches, patches), True where a patch may look.
        """
        # before
        r = self.attention(self.attention_norm(x), freqs_cis)
        # after
        r = self.attention(self.attention_norm(x), freqs_cis, mask=mask)
        # end
        h = x + r
        return h + self.feed_forward(self.ffn_norm(h))
