"""Attention on the sphere: each point of a grid counts with its area, as the logarithm of it is added to the scores."""

import math
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


def equiangular_weights(nlat: int) -> torch.Tensor:
    """Return the areas of the rings of a grid of equal angles, up to a factor."""
    theta = (torch.arange(nlat) + 0.5) * math.pi / nlat
    return torch.sin(theta)


class AttentionS2(nn.Module):
    r"""
    (Global) attention on the 2-sphere.

    Parameters
    ----------
    in_channels: int
        number of channels of the input signal
    num_heads: int
        number of attention heads
    in_shape: tuple
        shape of the input grid, (latitudes, longitudes)
    out_channels: int, optional
        number of channels of the output signal
    k_channels: int, optional
        number of channels of the query and key embeddings
    scale: float, optional
        factor of the scores, 1 / sqrt(channels of a head) by default
    use_qknorm: bool, optional
        whether queries and keys are normalized
    bias: bool, optional
        if specified, adds bias to input / output projection layers
    drop_rate: float, optional
        dropout rate of the attention weights
    """

    def __init__(
        self,
        in_channels: int,
        num_heads: int,
        in_shape: tuple[int, int],
        out_channels: Optional[int] = None,
        k_channels: Optional[int] = None,
        scale: Optional[float] = None,
        use_qknorm: bool = False,
        bias: bool = True,
        drop_rate: float = 0.0,
    ):
        super().__init__()
        self.nlat, self.nlon = in_shape
        self.num_heads = num_heads
        self.k_channels = in_channels if k_channels is None else k_channels
        self.out_channels = in_channels if out_channels is None else out_channels
        self.drop_rate = drop_rate
        self.scale = scale

        # the integral over the sphere is a sum with these weights
        wgl = equiangular_weights(self.nlat)
        log_quad_weights = torch.log(wgl).reshape(-1, 1).expand(self.nlat, self.nlon)
        self.register_buffer("log_quad_weights", log_quad_weights.reshape(1, 1, 1, -1).clone())

        self.q_proj = nn.Conv2d(in_channels, self.k_channels, kernel_size=1, bias=bias)
        self.k_proj = nn.Conv2d(in_channels, self.k_channels, kernel_size=1, bias=bias)
        self.v_proj = nn.Conv2d(in_channels, self.out_channels, kernel_size=1, bias=bias)
        self.proj = nn.Conv2d(self.out_channels, self.out_channels, kernel_size=1, bias=bias)
        head_dim = self.k_channels // num_heads
        self.q_norm = nn.LayerNorm(head_dim) if use_qknorm else nn.Identity()
        self.k_norm = nn.LayerNorm(head_dim) if use_qknorm else nn.Identity()

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, nlat, nlon = x.shape
        x = x.reshape(batch, self.num_heads, channels // self.num_heads, nlat * nlon)
        return x.permute(0, 1, 3, 2)

    def forward(
        self,
        query: torch.Tensor,
        key: Optional[torch.Tensor] = None,
        value: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """query: signals, of shape (batch, in_channels, latitudes, longitudes)"""
        key = query if key is None else key
        value = query if value is None else value
        q = self.q_norm(self._split(self.q_proj(query)))
        k = self.k_norm(self._split(self.k_proj(key)))
        v = self._split(self.v_proj(value))

        # before
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=self.log_quad_weights, dropout_p=self.drop_rate, scale=self.scale
        )
        # after
        drop_rate = self.drop_rate if self.training else 0.0
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=self.log_quad_weights, dropout_p=drop_rate, scale=self.scale
        )
        # end
        out = out.permute(0, 1, 3, 2).reshape(len(q), self.out_channels, *query.shape[-2:])
        return self.proj(out)
