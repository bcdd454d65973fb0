"""A transformer block over the frames of a clip, conditioned on the step of the diffusion."""

import torch
from torch import Tensor, nn


class TransformerBlock(nn.Module):
    """
    Attention and a feed-forward layer with pre-norms.

    Args:
        dim (int): Dimension of the tokens.
        heads (int): Number of heads.
        mlp_dim (int): Width of the feed-forward layer.
        dropout (float): Rate in both.
    """

    def __init__(self, dim: int, heads: int, mlp_dim: int, dropout: float = 0.1):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        # before
        self.attn = nn.MultiheadAttention(embed_dim=dim, num_heads=heads, dropout=dropout)
        # after
        self.attn = nn.MultiheadAttention(
            embed_dim=dim, num_heads=heads, dropout=dropout, batch_first=True
        )
        # end
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, mlp_dim),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(mlp_dim, dim),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        """
        Args:
            x (Tensor): Tokens of shape (batch, frames, dim).

        Returns:
            Tensor: Tokens of the same shape.
        """
        normed = self.norm1(x)
        attended, _ = self.attn(normed, normed, normed)
        x = x + attended
        return x + self.mlp(self.norm2(x))


class TemporalTransformer(nn.Module):
    """Blocks over the frames, with learned positions."""

    def __init__(
        self,
        dim: int = 32,
        depth: int = 1,
        heads: int = 4,
        mlp_dim: int = 64,
        max_frames: int = 32,
        dropout: float = 0.1,
    ):
        super().__init__()
        self.pos_embed = nn.Parameter(torch.randn(1, max_frames, dim) * 0.02)
        self.blocks = nn.ModuleList(
            [TransformerBlock(dim, heads, mlp_dim, dropout) for _ in range(depth)]
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        x = x + self.pos_embed[:, :t]
        for block in self.blocks:
            x = block(x)
        return self.norm(x)
