"""Attention for text-to-speech models."""

import math
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


def scaled_dot_product_attention(q, k, v, mask=None, dropout=0.0, training=True):
    r"""Scaled dot product attention with masking.

    Assume that q, k, v all have the same leading dimensions (denoted as * in descriptions below).
    Dropout is applied to attention weights before weighted sum of values.

    Parameters
    -----------
    q : Tensor [shape=(\*, T_q, d)]
        the query tensor.
    k : Tensor [shape=(\*, T_k, d)]
        the key tensor.
    v : Tensor [shape=(\*, T_k, d_v)]
        the value tensor.
    mask : Tensor, [shape=(\*, T_q, T_k) or broadcastable], optional
        the mask tensor, zeros correspond to paddings. Defaults to None.
    dropout : float, optional
        if dropout>0, dropout is applied. Defaults to 0.0.
    training : bool, optional
        whether to use dropout.

    Returns
    ----------
    out : Tensor [shape=(\*, T_q, d_v)]
        the context vector.
    weights : Tensor [shape=(\*, T_q, T_k)]
        the attention weights.
    """
    d = q.shape[-1]
    qk = torch.matmul(q, k.transpose(-2, -1))
    scaled_logit = qk / math.sqrt(d)

    if mask is not None:
        lowest = torch.finfo(scaled_logit.dtype).min
        scaled_logit = scaled_logit.masked_fill(mask == 0, lowest)

    # before
    scaled_logit = F.dropout(scaled_logit, dropout, training=training)
    weights = F.softmax(scaled_logit, dim=-1)
    # after
    weights = F.softmax(scaled_logit, dim=-1)
    weights = F.dropout(weights, dropout, training=training)
    # end
    out = torch.matmul(weights, v)
    return out, weights


class MultiheadAttention(nn.Module):
    """Multihead scaled dot product attention.

    Parameters
    -----------
    model_dim: int
        the feature size of query.
    num_heads : int
        the number of attention heads.
    dropout : float, optional
        dropout probability of scaled dot product attention. Defaults to 0.0.
    k_dim : int, optional
        feature size of the key of each scaled dot product attention.
    v_dim : int, optional
        feature size of the key of each scaled dot product attention.
    """

    def __init__(
        self,
        model_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        k_dim: Optional[int] = None,
        v_dim: Optional[int] = None,
    ):
        super().__init__()
        depth = model_dim // num_heads
        k_dim = k_dim or depth
        v_dim = v_dim or depth
        self.affine_q = nn.Linear(model_dim, num_heads * k_dim)
        self.affine_k = nn.Linear(model_dim, num_heads * k_dim)
        self.affine_v = nn.Linear(model_dim, num_heads * v_dim)
        self.affine_o = nn.Linear(num_heads * v_dim, model_dim)

        self.num_heads = num_heads
        self.model_dim = model_dim
        self.dropout = dropout

    def _split_heads(self, x):
        """(B, T, C) -> (B, N, T, H)"""
        batch_size, time_steps, _ = x.shape
        return x.reshape(batch_size, time_steps, self.num_heads, -1).transpose(1, 2)

    def _concat_heads(self, x):
        """(B, N, T, H) -> (B, T, C)"""
        batch_size, _, time_steps, _ = x.shape
        return x.transpose(1, 2).reshape(batch_size, time_steps, -1)

    def forward(self, q, k, v, mask=None):
        """Compute context vector and attention weights.

        q : (batch_size, T_q, model_dim), k and v : (batch_size, T_k, model_dim)
        mask : (batch_size, T_q, T_k) or broadcastable, zeros correspond to paddings
        """
        q = self._split_heads(self.affine_q(q))  # (B, N, T, C)
        k = self._split_heads(self.affine_k(k))
        v = self._split_heads(self.affine_v(v))
        if mask is not None:
            mask = mask.unsqueeze(1)  # unsqueeze for the h dim
        context_vectors, attention_weights = scaled_dot_product_attention(
            q, k, v, mask, self.dropout, self.training
        )
        context_vectors = self._concat_heads(context_vectors)  # (B, T, h*C)
        return self.affine_o(context_vectors), attention_weights
