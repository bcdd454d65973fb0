"""Pooling of the tokens of each pixel (time steps and band groups of satellite images) into a feature map."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class AttentionPool(nn.Module):
    """Attention pooling.

    Given a token feature map of shape BCHWN, learn an attention layer which aggregates over the N
    dimension. There is one learned query token, and it attends to the tokens of each pixel.
    """

    def __init__(self, in_dim: int, num_heads: int, linear_on_kv: bool = False) -> None:
        """Initialize the attention pooling layer.

        Args:
            in_dim: the encoding dimension C.
            num_heads: the number of heads, which must divide in_dim.
            linear_on_kv: whether to project the tokens to keys and values.
        """
        super().__init__()
        if in_dim % num_heads != 0:
            raise ValueError(
                f"in_dim must be divisible by num_heads. Got {in_dim} and {num_heads}."
            )
        self.query_token = nn.Parameter(torch.empty(in_dim))
        self.k_linear: nn.Linear | None = None
        self.v_linear: nn.Linear | None = None
        if linear_on_kv:
            self.k_linear = nn.Linear(in_dim, in_dim)
            self.v_linear = nn.Linear(in_dim, in_dim)
        self.num_heads = num_heads
        self.init_weights()

    def init_weights(self) -> None:
        """Initialize the query token."""
        nn.init.trunc_normal_(self.query_token, std=0.02)

    def _split(self, tokens: torch.Tensor) -> torch.Tensor:
        """[pixels, N, C] -> [pixels, head, N, C / head]."""
        return tokens.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward_for_map(self, feat_tokens: torch.Tensor) -> torch.Tensor:
        """Attention pooling for a single feature map (BCHWN tensor)."""
        B, D, H, W, N = feat_tokens.shape
        feat_tokens = feat_tokens.permute(0, 2, 3, 4, 1).reshape(B * H * W, N, D)
        q = self._split(self.query_token.expand(B * H * W, 1, -1))
        if self.k_linear is not None and self.v_linear is not None:
            k = self._split(self.k_linear(feat_tokens))
            v = self._split(self.v_linear(feat_tokens))
        else:
            k = self._split(feat_tokens)
            v = self._split(feat_tokens)

        attn_scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(D // self.num_heads)
        attn_weights = F.softmax(attn_scores, dim=-1)
        x = torch.matmul(attn_weights, v)  # [B * H * W, head, 1, D_head]
        # before
        return x.reshape(B, D, H, W)
        # after
        return x.reshape(B, H, W, D).permute(0, 3, 1, 2)
        # end

    def forward(
        self, feat_tokens: torch.Tensor | list[torch.Tensor]
    ) -> torch.Tensor | list[torch.Tensor]:
        """Forward pass for the attention pooling linear probe.

        Args:
            feat_tokens: input feature tokens of shape (B, C, H, W, N), or a list of such maps. The same
                query token and linear layers are applied to all of them.

        Returns:
            the maps pooled over the last dimension, (B, C, H, W) each.
        """
        if isinstance(feat_tokens, torch.Tensor):
            return self.forward_for_map(feat_tokens)
        return [self.forward_for_map(feat) for feat in feat_tokens]
