"""Attention of atoms within windows, biased by the pairs of a molecule; several samples share a molecule's pairs."""

import torch
from torch import Tensor, nn


class AttentionPairBias(nn.Module):
    """Attention pair bias layer.

    Parameters
    ----------
    c_s : int
        The input sequence dimension.
    c_z : int
        The input pairwise dimension.
    num_heads : int
        The number of heads.
    inf : float, optional
        What hides a key, by default 1e6
    """

    def __init__(self, c_s: int, c_z: int, num_heads: int, inf: float = 1e6) -> None:
        super().__init__()
        assert c_s % num_heads == 0
        self.c_s = c_s
        self.num_heads = num_heads
        self.head_dim = c_s // num_heads
        self.inf = inf
        self.norm_s = nn.LayerNorm(c_s)
        self.proj_q = nn.Linear(c_s, c_s)
        self.proj_k = nn.Linear(c_s, c_s, bias=False)
        self.proj_v = nn.Linear(c_s, c_s, bias=False)
        self.proj_g = nn.Linear(c_s, c_s, bias=False)
        self.norm_z = nn.LayerNorm(c_z)
        self.proj_z = nn.Linear(c_z, num_heads, bias=False)
        self.proj_o = nn.Linear(c_s, c_s, bias=False)

    def forward(self, s: Tensor, z: Tensor, mask: Tensor) -> Tensor:
        """
        s: (B, W, c_s). z: (B, W, W, c_z). mask: (B, W), 1 at atoms.
        """
        B, W, _ = s.shape
        s = self.norm_s(s)
        q = self.proj_q(s).view(B, W, self.num_heads, self.head_dim)
        k = self.proj_k(s).view(B, W, self.num_heads, self.head_dim)
        v = self.proj_v(s).view(B, W, self.num_heads, self.head_dim)
        bias = self.proj_z(self.norm_z(z)).permute(0, 3, 1, 2)
        g = self.proj_g(s).sigmoid()

        attn = torch.einsum("bihd,bjhd->bhij", q, k) / (self.head_dim**0.5) + bias
        attn = attn + (1 - mask[:, None, None].to(attn.dtype)) * -self.inf
        attn = attn.softmax(dim=-1)
        o = torch.einsum("bhij,bjhd->bihd", attn, v).reshape(B, W, self.c_s)
        return self.proj_o(g * o)


class AtomAttention(nn.Module):
    """Attention pair bias in windows of consecutive atoms."""

    def __init__(self, c_s: int, c_z: int, num_heads: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.attn = AttentionPairBias(c_s, c_z, num_heads)

    def forward(self, s: Tensor, z: Tensor, mask: Tensor) -> Tensor:
        """
        Parameters
        ----------
        s : Tensor
            Atoms, of shape (B * multiplicity, N, c_s); the samples of a molecule follow each other
        z : Tensor
            Pairs within each window, of shape (B, N // window, window, window, c_z)
        mask : Tensor
            1 at atoms, 0 at padding, of shape (B * multiplicity, N)
        """
        B, N, D = s.shape
        NW = N // self.window
        multiplicity = B // z.shape[0]
        # windows become part of the batch
        s = s.view(B * NW, self.window, D)
        mask = mask.view(B * NW, self.window)
        # before
        z = z.flatten(0, 1).repeat_interleave(multiplicity, 0)
        # after
        z = z.repeat_interleave(multiplicity, 0).flatten(0, 1)
        # end
        return self.attn(s, z, mask).view(B, N, D)
