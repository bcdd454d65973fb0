"""An encoder of documents, sentence by sentence, on a MultiHeadAttention layer in the manner of Keras."""

import math
from typing import Optional

import torch
from torch import Tensor, nn


class MultiHeadAttention(nn.Module):
    """MultiHeadAttention layer.

    The inputs may have any number of axes between the batch and the features. The attention takes place over the axis
    `attention_axis`; the others are like batches.

    Args:
        input_dim: Size of the features of query, key and value.
        num_heads: Number of attention heads.
        key_dim: Size of each attention head for query and key.
        dropout: Dropout probability.
        attention_axis: The axis over which the attention is applied, not the batch or the features.
    """

    def __init__(
        self,
        input_dim: int,
        num_heads: int,
        key_dim: int,
        dropout: float = 0.0,
        attention_axis: int = 1,
    ):
        super().__init__()
        self._num_heads = num_heads
        self._key_dim = key_dim
        self._attention_axis = attention_axis
        self._query_dense = nn.Linear(input_dim, num_heads * key_dim)
        self._key_dense = nn.Linear(input_dim, num_heads * key_dim)
        self._value_dense = nn.Linear(input_dim, num_heads * key_dim)
        self._output_dense = nn.Linear(num_heads * key_dim, input_dim)
        self._dropout_layer = nn.Dropout(dropout)

    def _compute_attention_mask(
        self,
        query_mask: Optional[Tensor] = None,
        value_mask: Optional[Tensor] = None,
        attention_mask: Optional[Tensor] = None,
    ) -> Optional[Tensor]:
        """Computes the attention mask, using the masks of the inputs and the one that the caller gives.

        A location is masked in the result if its query or its value is masked, or `attention_mask` masks it.
        """
        auto_mask = None
        # before
        if query_mask is not None:
            auto_mask = query_mask[:, :, None]  # [B, T, 1]
        if value_mask is not None:
            mask = value_mask[:, None, :]  # [B, 1, S]
            auto_mask = mask if auto_mask is None else auto_mask & mask
        # after
        if query_mask is not None:
            auto_mask = query_mask.unsqueeze(-1)  # [B, ..., T, 1]
        if value_mask is not None:
            mask = value_mask.unsqueeze(-2)  # [B, ..., 1, S]
            auto_mask = mask if auto_mask is None else auto_mask & mask
        # end
        if auto_mask is None:
            return attention_mask
        return auto_mask if attention_mask is None else attention_mask & auto_mask

    def _split(self, x: Tensor) -> Tensor:
        # [B, ..., T, N, H], with the attention axis at T
        x = x.movedim(self._attention_axis, -2)
        return x.unflatten(-1, (self._num_heads, self._key_dim))

    def forward(
        self,
        query: Tensor,
        value: Tensor,
        query_mask: Optional[Tensor] = None,
        value_mask: Optional[Tensor] = None,
        attention_mask: Optional[Tensor] = None,
    ) -> Tensor:
        attention_mask = self._compute_attention_mask(query_mask, value_mask, attention_mask)
        q = self._split(self._query_dense(query)) / math.sqrt(self._key_dim)
        k = self._split(self._key_dense(value))
        v = self._split(self._value_dense(value))

        scores = torch.einsum("...tnh,...snh->...nts", q, k)
        if attention_mask is not None:
            # the same for all heads
            attention_mask = attention_mask.unsqueeze(-3)
            scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
        scores = self._dropout_layer(torch.softmax(scores, dim=-1))
        output = torch.einsum("...nts,...snh->...tnh", scores, v).flatten(-2)
        return self._output_dense(output).movedim(-2, self._attention_axis)


class Encoder(nn.Module):
    """The words of each sentence attend to those of the same sentence. 0 is the padding (`mask_zero`).

    ids: [B, sentences, words] -> [B, sentences, words, embed_dim]
    """

    def __init__(
        self, vocab_size: int = 4500, embed_dim: int = 32, num_heads: int = 2, key_dim: int = 16
    ):
        super().__init__()
        self.embed_layer = nn.Embedding(vocab_size, embed_dim, padding_idx=0)
        self.attn_layer = MultiHeadAttention(embed_dim, num_heads, key_dim, attention_axis=2)
        self.norm_layer = nn.LayerNorm(embed_dim)

    def forward(self, ids: Tensor) -> Tensor:
        mask = ids != 0
        x = self.embed_layer(ids)
        return self.norm_layer(x + self.attn_layer(x, x, query_mask=mask, value_mask=mask))
