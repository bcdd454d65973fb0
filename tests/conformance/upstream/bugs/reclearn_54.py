"""The attention of a sequential recommender, whose heads are part of the batch."""

import torch
from torch import nn


def split_heads(x, num_heads):
    """(None, seq_len, d_model) -> (num_heads * None, seq_len, d_model / num_heads), the first head first."""
    return torch.cat(x.chunk(num_heads, dim=-1), dim=0)


def scaled_dot_product_attention(q, k, v, mask=None, causality=True):
    """
    :param mask: 1 for a real item and 0 for padding, of shape (..., 1, seq_len_k)
    :param causality: whether an item sees only the items up to it
    """
    mat_qk = torch.matmul(q, k.transpose(1, 2))
    outputs = mat_qk / k.shape[-1] ** 0.5
    paddings = torch.ones_like(outputs) * (-(2**32) + 1)
    if mask is not None:
        outputs = torch.where(mask == 0, paddings, outputs)
    if causality:
        tril = torch.ones_like(outputs).tril()
        outputs = torch.where(tril == 0, paddings, outputs)
    return torch.matmul(outputs.softmax(dim=-1), v)


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads, causality=True):
        """
        :param d_model: A scalar. The self-attention hidden size.
        :param num_heads: A scalar. Number of heads.
        :param causality: Boolean. If True, using causality.
        """
        super().__init__()
        self.d_model = d_model
        self.num_heads = num_heads
        self.causality = causality
        self.wq = nn.Linear(d_model, d_model, bias=False)
        self.wk = nn.Linear(d_model, d_model, bias=False)
        self.wv = nn.Linear(d_model, d_model, bias=False)

    def forward(self, q, k, v, mask=None):
        """
        q, k, v: (None, seq_len, d_model). mask: (None, seq_len), 1 for a real item and 0 for padding.
        """
        q = split_heads(self.wq(q), self.num_heads)
        k = split_heads(self.wk(k), self.num_heads)
        v = split_heads(self.wv(v), self.num_heads)

        if mask is not None:
            # before
            mask = mask.unsqueeze(1)
            # after
            mask = mask.unsqueeze(1).repeat(self.num_heads, 1, 1)
            # end

        scaled_attention = scaled_dot_product_attention(q, k, v, mask, self.causality)
        return torch.cat(scaled_attention.chunk(self.num_heads, dim=0), dim=2)
