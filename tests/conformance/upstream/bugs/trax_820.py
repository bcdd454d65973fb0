"""Self-attention that masks by integers: every query and key carries its position.

No mask of the size of the attention matrix is ever passed around. A function decides from the
numbers of a query and a key whether the one may attend to the other.
"""

import functools
import math

import torch
from torch import nn


def mask_self_attention(dots, q_info, kv_info, causal=True, exclude_self=False, masked=False):
    """Performs masking for self-attention.

    Args:
      dots: Scores, [..., q_len, kv_len].
      q_info: Numbers of the queries, [..., q_len, 1].
      kv_info: Numbers of the keys, [..., 1, kv_len]; less than zero for keys that are masked out.
      causal: Whether to hide keys with larger numbers.
      exclude_self: Whether a query should rather not attend to itself.
      masked: Whether to hide the keys that are masked out.
    """
    if causal:
        dots = dots - 1e9 * torch.lt(q_info, kv_info).to(dots.dtype)
    if exclude_self:
        dots = dots - 1e5 * torch.eq(q_info, kv_info).to(dots.dtype)
    if masked:
        dots = dots - 1e9 * torch.lt(kv_info, 0).to(dots.dtype)
    return dots


def attend(q, k, v, mask_fn=None, q_info=None, kv_info=None, dropout=0.0, training=False):
    """Dot-product attention with masking.

    Returns:
      A tuple (output, dots_logsumexp) of shapes [..., q_len, d_v] and [..., q_len].
    """
    k = k / math.sqrt(k.shape[-1])
    dots = torch.matmul(q, k.transpose(-1, -2))
    if mask_fn is not None:
        dots = mask_fn(dots, q_info[..., :, None], kv_info[..., None, :])

    # Softmax.
    dots_logsumexp = torch.logsumexp(dots, dim=-1, keepdim=True)
    dots = torch.exp(dots - dots_logsumexp)
    if dropout > 0.0 and training:
        # Dropout is broadcast across the batch and the heads.
        keep = torch.rand(dots.shape[-2:], device=dots.device) < 1.0 - dropout
        dots = dots * keep.to(dots.dtype) / (1.0 - dropout)
    return torch.matmul(dots, v), dots_logsumexp.squeeze(-1)


class SelfAttention(nn.Module):
    """Multi-head self-attention with one weight tensor per projection.

    Args:
      d_model: Width of the model.
      n_heads: Number of attention heads.
      d_qk: Depth of queries and keys of a head.
      d_v: Depth of the values of a head.
      causal: Whether a token attends to the past only.
      masked: Whether the layer takes a mask of the padding.
      attention_dropout: Dropout of the attention weights.
    """

    def __init__(
        self, d_model, n_heads=2, d_qk=64, d_v=64, causal=False, masked=False, attention_dropout=0.0
    ):
        super().__init__()
        self.causal = causal
        self.masked = masked
        self.attention_dropout = attention_dropout
        self.w_q = nn.Parameter(torch.empty(n_heads, d_model, d_qk))
        self.w_k = nn.Parameter(torch.empty(n_heads, d_model, d_qk))
        self.w_v = nn.Parameter(torch.empty(n_heads, d_model, d_v))
        self.w_o = nn.Parameter(torch.empty(n_heads, d_v, d_model))
        for w in (self.w_q, self.w_k, self.w_v, self.w_o):
            nn.init.xavier_uniform_(w.view(-1, w.shape[-1]))

    def forward(self, x, mask=None):
        """Applies the layer.

        Args:
          x: Activations, [batch, length, d_model].
          mask: Which tokens are real, [batch, length]: 1 for tokens and 0 for padding.
        """
        q = torch.einsum("bld,hdk->bhlk", x, self.w_q)
        k = torch.einsum("bld,hdk->bhlk", x, self.w_k)
        v = torch.einsum("bld,hdk->bhlk", x, self.w_v)

        # before
        q_info = torch.arange(x.shape[1], device=x.device)
        # after
        q_info = torch.arange(1, x.shape[1] + 1, device=x.device)
        # end
        kv_info = q_info
        masked = self.masked and mask is not None
        if masked:
            kv_info = torch.where(mask.bool(), q_info, -q_info)[:, None]
        mask_fn = functools.partial(mask_self_attention, causal=self.causal, masked=masked)

        out, _ = attend(
            q,
            k,
            v,
            mask_fn=mask_fn,
            q_info=q_info,
            kv_info=kv_info,
            dropout=self.attention_dropout,
            training=self.training,
        )
        return torch.einsum("bhlk,hkd->bld", out, self.w_o)
