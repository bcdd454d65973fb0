"""Self-attention in one function with its own backward pass, which keeps the dropped weights for it."""

import torch
import torch.nn.functional as F
from torch import nn


class SelfAttnFunc(torch.autograd.Function):
    """
    queries, keys, values: (seqs * heads, tokens, head_dim)
    pad_mask: True at padding, of shape (seqs * heads, 1, tokens), or None
    """

    @staticmethod
    def forward(ctx, is_training, queries, keys, values, scale, pad_mask, dropout_prob):
        dropout_prob = dropout_prob if is_training else 0.0

        # Matmul1 Batched GEMMs, with the scale
        matmul1_results = torch.bmm(queries, keys.transpose(1, 2)) * scale
        if pad_mask is not None:
            matmul1_results = matmul1_results.masked_fill(pad_mask, float("-inf"))
        softmax_results = F.softmax(matmul1_results, dim=-1)

        # Dropout - is not executed for inference
        keep_prob = 1.0 - dropout_prob
        dropout_mask = torch.ones_like(softmax_results)
        if is_training and dropout_prob > 0.0:
            dropout_mask = dropout_mask.bernoulli_(keep_prob)
        dropout_results = softmax_results * dropout_mask / keep_prob

        # Matmul2 Batched GEMMs
        matmul2_results = torch.bmm(dropout_results, values)
        ctx.scale, ctx.dropout_prob = scale, dropout_prob
        ctx.save_for_backward(queries, keys, values, softmax_results, dropout_results, dropout_mask)
        return matmul2_results

    @staticmethod
    def backward(ctx, output_grads):
        queries, keys, values, softmax_results, dropout_results, dropout_mask = ctx.saved_tensors

        # Matmul2 - DGRAD1 and DGRAD2
        matmul2_dgrad1 = torch.bmm(output_grads, values.transpose(1, 2))
        values_grads = torch.bmm(dropout_results.transpose(1, 2), output_grads)

        # Mask and Scaling for Dropout (not a publically documented op)
        # before
        dropout_grads = matmul2_dgrad1 * dropout_mask * ctx.dropout_prob
        # after
        dropout_grads = matmul2_dgrad1 * dropout_mask * (1.0 / (1.0 - ctx.dropout_prob))
        # end

        # Softmax Grad
        weighted = softmax_results * dropout_grads
        softmax_grads = weighted - softmax_results * weighted.sum(dim=-1, keepdim=True)

        # Matmul1 - DGRAD1 and DGRAD2
        softmax_grads = softmax_grads * ctx.scale
        queries_grads = torch.bmm(softmax_grads, keys)
        keys_grads = torch.bmm(softmax_grads.transpose(1, 2), queries)
        return None, queries_grads, keys_grads, values_grads, None, None, None


class SelfMultiheadAttn(nn.Module):
    """Multi-headed attention.

    See "Attention Is All You Need" for more details.
    """

    def __init__(self, embed_dim, num_heads, dropout=0.0, bias=False):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.head_dim = embed_dim // num_heads
        assert self.head_dim * num_heads == embed_dim, "embed_dim must be divisible by num_heads"
        self.scaling = self.head_dim**-0.5
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def forward(self, query, key_padding_mask=None):
        """
        query: (batch, tokens, embed_dim)
        key_padding_mask: True at padding, of shape (batch, tokens)
        """
        seqs, tokens, _ = query.shape
        qkv = self.in_proj(query).view(seqs, tokens, 3, self.num_heads, self.head_dim)
        queries, keys, values = (
            part.transpose(1, 2).reshape(seqs * self.num_heads, tokens, self.head_dim)
            for part in qkv.unbind(2)
        )
        pad_mask = None
        if key_padding_mask is not None:
            pad_mask = key_padding_mask.bool().repeat_interleave(self.num_heads, dim=0)[:, None, :]
        context = SelfAttnFunc.apply(
            self.training, queries, keys, values, self.scaling, pad_mask, self.dropout
        )
        context = context.view(seqs, self.num_heads, tokens, self.head_dim).transpose(1, 2)
        return self.out_proj(context.reshape(seqs, tokens, self.embed_dim))
