"""FAVOR+ attention: the softmax kernel is estimated with positive random features, so that memory is linear."""

import math
from dataclasses import dataclass
from typing import Optional

import torch
from torch import nn


@dataclass
class FavorAttentionConfig:
    dim_head: int
    dim_features: Optional[int] = None
    iter_before_redraw: Optional[int] = None


class SMOrf(nn.Module):
    """
    "Softmax orthogonal random features", as proposed in `Rethinking Attention with Performers`_.

    The features of blocks of `dim_input` rows are orthogonal, and have the norms of gaussian vectors.
    """

    def __init__(
        self, dim_features: int, dim_input: int, iter_before_redraw: Optional[int] = None
    ) -> None:
        super().__init__()
        self.dim_features = dim_features
        self.dim_input = dim_input
        self.iter_before_redraw = iter_before_redraw
        self._iter_counter = 0
        self.register_buffer("features", self._get_feature_map())

    @torch.no_grad()
    def _get_feature_map(self) -> torch.Tensor:
        blocks = []
        for _ in range(math.ceil(self.dim_features / self.dim_input)):
            q, _ = torch.linalg.qr(torch.randn(self.dim_input, self.dim_input))
            norms = torch.randn(self.dim_input, self.dim_input).norm(dim=-1, keepdim=True)
            blocks.append(q * norms)
        return torch.cat(blocks)[: self.dim_features].t().contiguous()

    def step(self) -> None:
        """Count an iteration of the training, and draw new features when it is time."""
        self._iter_counter += 1
        if self.iter_before_redraw and self._iter_counter % self.iter_before_redraw == 0:
            self.features.copy_(self._get_feature_map())

    def forward(self, x: torch.Tensor, stable_over: tuple[int, ...] = (-1,)) -> torch.Tensor:
        x = x * self.dim_input**-0.25
        h = -0.5 * x.square().sum(dim=-1, keepdim=True)
        x = x @ self.features + h
        # One factor for each query, or for all keys: the normalization of the attention cancels it
        return torch.exp(x - x.detach().amax(dim=stable_over, keepdim=True))


class FavorAttention(nn.Module):
    r"""
    Kernelized attention, as proposed in Performers_. Not causal.

    Args:
        dim_head (int): dimension of each head
        dim_features (int): number of the random features
        iter_before_redraw (int): the number of iterations before new features are drawn
    """

    def __init__(
        self,
        dim_head: int,
        dim_features: Optional[int] = None,
        iter_before_redraw: Optional[int] = None,
        *_,
        **__,
    ):
        super().__init__()
        if dim_features is None:
            dim_features = math.ceil(dim_head * (1 + math.log2(dim_head)))

        feature_settings = {
            "dim_features": dim_features,
            "dim_input": dim_head,
            "iter_before_redraw": iter_before_redraw,
        }
        # before
        self.feature_map_query = SMOrf(**feature_settings)
        self.feature_map_key = SMOrf(**feature_settings)
        # after
        self.feature_map_query = SMOrf(**feature_settings)
        self.feature_map_key = self.feature_map_query
        # end

    @staticmethod
    def _maybe_promote(x: torch.Tensor) -> torch.Tensor:
        # Only promote fp16 buffers, bfloat16 would be fine for instance
        return x.float() if x.dtype == torch.float16 else x

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_, **__) -> torch.Tensor:
        """q, k, v: (batch * heads, sequence, dim_head)"""
        if self.training:
            for feature_map in {self.feature_map_query, self.feature_map_key}:
                feature_map.step()

        q_prime = self.feature_map_query(self._maybe_promote(q))
        k_prime = self.feature_map_key(self._maybe_promote(k), stable_over=(-2, -1))
        values = self._maybe_promote(v)

        # Keys and values first, so that nothing is of size sequence * sequence
        att_raw = q_prime @ (k_prime.transpose(-2, -1) @ values)
        att_normalization = q_prime @ k_prime.sum(dim=-2, keepdim=True).transpose(-2, -1)
        return (att_raw / att_normalization).to(v.dtype)


class MultiHeadDispatch(nn.Module):
    """
    A multi-head masked self-attention dispatch mechanism, with a projection at the end.

    The attention sees heads as entries of the batch.
    """

    def __init__(
        self,
        dim_model: int,
        num_heads: int,
        dim_features: Optional[int] = None,
        residual_dropout: float = 0.0,
        bias: bool = True,
    ):
        super().__init__()
        assert dim_model % num_heads == 0
        self.num_heads = num_heads
        self.dim_head = dim_model // num_heads
        config = FavorAttentionConfig(self.dim_head, dim_features)
        self.attention = FavorAttention(**vars(config))
        self.q_proj = nn.Linear(dim_model, dim_model, bias=bias)
        self.k_proj = nn.Linear(dim_model, dim_model, bias=bias)
        self.v_proj = nn.Linear(dim_model, dim_model, bias=bias)
        self.proj = nn.Linear(dim_model, dim_model, bias=bias)
        self.resid_drop = nn.Dropout(residual_dropout)

    def _split_heads(self, t: torch.Tensor) -> torch.Tensor:
        B, S, _ = t.shape
        t = t.view(B, S, self.num_heads, self.dim_head).transpose(1, 2)
        return t.reshape(B * self.num_heads, S, self.dim_head)

    def forward(
        self,
        query: torch.Tensor,
        key: Optional[torch.Tensor] = None,
        value: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """
        Expected input dimensions are [batch size, sequence length, embed dim]
        Output dimensions are [batch size, sequence length, embed dim]
        """
        key = query if key is None else key
        value = key if value is None else value
        B, S_Q, _ = query.shape

        q = self._split_heads(self.q_proj(query))
        k = self._split_heads(self.k_proj(key))
        v = self._split_heads(self.v_proj(value))
        y = self.attention(q=q, k=k, v=v)

        y = y.view(B, self.num_heads, S_Q, self.dim_head).transpose(1, 2).flatten(2)
        return self.resid_drop(self.proj(y))
