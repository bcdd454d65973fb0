"""Layers of a transformer as dfdx has them: what has several inputs takes them as a tuple."""

import torch
from torch import Tensor, nn

Input = Tensor | tuple[Tensor, Tensor, Tensor]


class MultiHeadAttention(nn.Module):
    """
    A multi-head attention layer, generic over the widths of keys (`k_dim`) and values (`v_dim`) of all heads.

    - `MultiHeadAttention(8, 2)` is an attention layer with 2 heads and 8 token, key and value dims.
    - `MultiHeadAttention(8, 2, 6, 4)` is one with the key and value dims specified.

    Inputs are (S, E) or (B, S, E): one tensor for self-attention, or the tuple of queries, keys and values.
    """

    def __init__(self, embed_dim: int, num_heads: int, k_dim: int = 0, v_dim: int = 0):
        super().__init__()
        k_dim, v_dim = k_dim or embed_dim, v_dim or embed_dim
        assert k_dim % num_heads == 0
        assert v_dim % num_heads == 0
        self.h, self.k, self.v = num_heads, k_dim, v_dim
        self.w_q = nn.Linear(embed_dim, k_dim)
        self.w_k = nn.Linear(embed_dim, k_dim)
        self.w_v = nn.Linear(embed_dim, v_dim)
        self.w_o = nn.Linear(v_dim, embed_dim)

    def _forward_batch(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        b, s1, _ = q.shape
        s2 = k.shape[1]

        # before
        v = self.w_v(v).reshape(b, self.h, s2, self.v // self.h)
        k = self.w_k(k).reshape(b, self.h, s2, self.k // self.h)
        q = self.w_q(q).reshape(b, self.h, s1, self.k // self.h)
        # after
        v = self.w_v(v).reshape(b, s2, self.h, self.v // self.h).permute(0, 2, 1, 3)
        k = self.w_k(k).reshape(b, s2, self.h, self.k // self.h).permute(0, 2, 1, 3)
        q = self.w_q(q).reshape(b, s1, self.h, self.k // self.h).permute(0, 2, 1, 3)
        # end

        # Get weights
        scalar = 1.0 / (self.k / self.h) ** 0.5
        weights = torch.matmul(q, k.permute(0, 1, 3, 2)) * scalar
        weights = torch.softmax(weights, dim=3)

        # Get new tokens
        tokens = torch.matmul(weights, v)
        # before
        tokens = tokens.reshape(b, s1, self.v)
        # after
        tokens = tokens.permute(0, 2, 1, 3).reshape(b, s1, self.v)
        # end
        return self.w_o(tokens)

    def forward(self, input: Input) -> Tensor:
        q, k, v = input if isinstance(input, tuple) else (input, input, input)
        if q.ndim == 2:
            return self._forward_batch(q[None], k[None], v[None])[0]
        return self._forward_batch(q, k, v)


class Residual(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class TransformerEncoderBlock(nn.Module):
    """
    A single transformer encoder block, with the norms after the residuals.

    - `model_dim`: the size of the inputs and outputs
    - `num_heads`: the number of heads in the self-attention
    - `ff_dim`: the size of the hidden layer in the feedforward network
    """

    def __init__(self, model_dim: int, num_heads: int, ff_dim: int):
        super().__init__()
        self.self_attn = Residual(MultiHeadAttention(model_dim, num_heads))
        self.norm1 = nn.LayerNorm(model_dim)
        self.ff = Residual(
            nn.Sequential(nn.Linear(model_dim, ff_dim), nn.ReLU(), nn.Linear(ff_dim, model_dim))
        )
        self.norm2 = nn.LayerNorm(model_dim)

    def forward(self, src: Tensor) -> Tensor:
        x = self.norm1(self.self_attn(src))
        return self.norm2(self.ff(x))


class TransformerEncoder(nn.Sequential):
    """`num_layers` of `TransformerEncoderBlock` in sequence."""

    def __init__(self, model_dim: int, num_heads: int, ff_dim: int, num_layers: int):
        super().__init__(
            *[TransformerEncoderBlock(model_dim, num_heads, ff_dim) for _ in range(num_layers)]
        )
