"""The attention of a model compiler: a fast kernel where the hardware has one, a plain one elsewhere."""

import torch
import torch.nn.functional as F
from torch import nn

FAST_DTYPES = (torch.float16,)


def _attention_sequence_prefill(q, k, v, mask, sm_scale=1.0):
    """The plain kernel, on tensors of shape (batch, length, heads, head_dim)."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * sm_scale
    if mask is not None:
        scores = scores + mask
    return torch.einsum("bhqk,bkhd->bqhd", torch.softmax(scores, dim=-1), v)


def attention(q, k, v, mask=None):
    """Attention with the scale 1 / sqrt(head_dim), on tensors of shape (batch, length, heads, head_dim)."""
    head_dim = q.shape[-1]

    def _fallback():
        # before
        return _attention_sequence_prefill(q, k, v, mask)
        # after
        return _attention_sequence_prefill(q, k, v, mask, sm_scale=head_dim**-0.5)
        # end

    def _fast():
        q_, k_, v_ = (t.transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q_, k_, v_, attn_mask=mask).transpose(1, 2)

    return _fast() if q.is_cuda and q.dtype in FAST_DTYPES else _fallback()


class BertSelfAttention(nn.Module):
    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.num_heads = num_attention_heads
        self.head_dim = hidden_size // num_attention_heads
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)

    def forward(self, hidden_states, attention_mask=None):
        """attention_mask: is added to the scores, of shape (batch, 1, 1, length)."""
        b, s, _ = hidden_states.shape
        qkv = self.qkv(hidden_states).reshape(b, s, 3 * self.num_heads, self.head_dim)
        q, k, v = qkv.chunk(3, dim=2)
        return attention(q, k, v, attention_mask).reshape(b, s, -1)
