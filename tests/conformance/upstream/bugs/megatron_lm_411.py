"""The core of an attention that calls a fused kernel."""

import torch
import torch.nn.functional as F


def flash_attn_func(q, k, v, dropout_p, softmax_scale=None, causal=False):
    """Stand-in for the fused kernel, on tensors of shape (batch, length, heads, head_dim)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(
        q, k, v, dropout_p=dropout_p, is_causal=causal, scale=softmax_scale
    )
    return out.transpose(1, 2)


class FlashSelfAttention(torch.nn.Module):
    """
    Arguments
    ---------
        softmax_scale: The temperature to use for the softmax attention.
                      (default: 1/sqrt(d_keys) where d_keys is computed at runtime)
        attention_dropout: The dropout rate to apply to the attention (default: 0.0)
    """

    def __init__(self, causal=False, softmax_scale=None, attention_dropout=0.0):
        super().__init__()
        self.causal = causal
        self.softmax_scale = softmax_scale
        self.dropout_p = attention_dropout

    def forward(self, q, k, v):
        """q, k, v: The tensors containing the query, key, and value. (B, S, H, D)"""
        assert all(i.dtype == q.dtype for i in (k, v))

        # a single query of a generation sees all keys
        is_causal = self.causal and q.shape[1] == k.shape[1]
        # before
        if not self.training:
            self.dropout_p = 0.0
        dropout_p = self.dropout_p
        # after
        dropout_p = self.dropout_p if self.training else 0.0
        # end
        return flash_attn_func(
            q, k, v, dropout_p, softmax_scale=self.softmax_scale, causal=is_causal
        )
