"""Attention without a fused kernel: the fallback of a backend, and the module that calls it."""

import math

import torch
from torch import Tensor, nn


def attention_fallback(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    attn_bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Exact scaled dot-product attention.

    The mask is True where a key is hidden, of shape (batch, 1 or heads, 1 or q_len, k_len).
    """
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = torch.matmul(query, key.transpose(-2, -1)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if attn_bias is not None:
        scores = scores + attn_bias
    if mask is not None:
        scores = scores.masked_fill(mask, -math.inf)
    if is_causal:
        q_len, k_len = scores.shape[-2:]
        future = torch.ones(q_len, k_len, dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(future.triu(k_len - q_len + 1), -math.inf)

    # The softmax, step by step
    # before
    max_per_dim = scores.amax(dim=-1, keepdim=True)
    numerator = torch.exp(scores - max_per_dim)
    weights = numerator / numerator.sum(dim=-1, keepdim=True)
    # after
    max_per_dim = scores.amax(dim=-1, keepdim=True).clamp(min=-1e4)
    numerator = torch.exp(scores - max_per_dim)
    weights = numerator / numerator.sum(dim=-1, keepdim=True).clamp(min=1e-12)
    # end
    return torch.matmul(weights, value)


class CausalSelfAttention(nn.Module):
    """Self-attention of a decoder, for batches that may be padded on either side.

    Params:
        d_model: The size of each linear layer.
        n_heads: The number of heads.
        bias: Whether the linear layers have biases.
        softcap: What the scores are capped to, if anything.
    """

    def __init__(self, d_model: int, n_heads: int, bias: bool = True, softcap: float | None = None):
        super().__init__()
        self.n_heads = n_heads
        self.d_k = d_model // n_heads
        self.softcap = softcap
        self.query = nn.Linear(d_model, d_model, bias=bias)
        self.key = nn.Linear(d_model, d_model, bias=bias)
        self.value = nn.Linear(d_model, d_model, bias=bias)
        self.output = nn.Linear(d_model, d_model, bias=bias)

    def attention_linear(self, x: Tensor, linear: nn.Linear) -> Tensor:
        batch_size, seq_length, _ = x.shape
        return linear(x).reshape(batch_size, seq_length, self.n_heads, self.d_k).transpose(1, 2)

    def forward(self, x: Tensor, mask_pad: Tensor | None = None) -> Tensor:
        """Attend; `mask_pad` is True at padding, of shape (batch, seq_length)."""
        batch_size, seq_length, d_model = x.shape
        query = self.attention_linear(x, self.query)
        key = self.attention_linear(x, self.key)
        value = self.attention_linear(x, self.value)
        mask = None if mask_pad is None else mask_pad.reshape(batch_size, 1, 1, seq_length)
        context = attention_fallback(query, key, value, mask, softcap=self.softcap, is_causal=True)
        context = context.transpose(1, 2).reshape(batch_size, seq_length, d_model)
        return self.output(context)
