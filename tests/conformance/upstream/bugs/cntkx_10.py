"""Attention layers on top of a deep learning library, in its functional style."""

import torch
from torch import Tensor, nn


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    obey_sequence_order: bool = False,
    max_seq_len: int | None = None,
) -> Tensor:
    """
    Scaled dot-product attention implementation of "Attention is all you need".

    Arguments:
        query: (..., query tokens, dim)
        key: (..., tokens, dim)
        value: (..., tokens, value dim)
        obey_sequence_order: do not let attention peek into future values
        max_seq_len: the longest sequence, when obey_sequence_order is used

    Returns:
        weighted average of the values
    """
    dk = query.shape[-1]

    unnormalized_weights = query @ key.transpose(-2, -1)
    # before
    unnormalized_weights = unnormalized_weights / dk
    # after
    unnormalized_weights = unnormalized_weights / dk**0.5
    # end

    if obey_sequence_order:
        length = key.shape[-2]
        assert max_seq_len is None or length <= max_seq_len, "sequence is longer than max_seq_len"
        future = torch.ones(length, length, dtype=torch.bool, device=key.device).triu(1)
        unnormalized_weights = unnormalized_weights.masked_fill(future, float("-inf"))

    attention_weights = torch.softmax(unnormalized_weights, dim=-1)
    return attention_weights @ value


class MultiHeadAttention(nn.Module):
    """
    Multi-head attention as described in "Attention is all you need".

    Arguments:
        num_heads: number of attention heads
        model_dim: number of hidden dimensions of the model
        obey_sequence_order: do not let attention peek into future values
        max_seq_len: the longest sequence, when obey_sequence_order is used
    """

    def __init__(
        self,
        num_heads: int,
        model_dim: int,
        obey_sequence_order: bool = False,
        max_seq_len: int | None = None,
    ):
        super().__init__()
        assert model_dim % num_heads == 0, "model_dim must be divisible by num_heads"
        self.num_heads = num_heads
        self.head_dim = model_dim // num_heads
        self.obey_sequence_order = obey_sequence_order
        self.max_seq_len = max_seq_len
        self.query_linear = nn.Linear(model_dim, model_dim)
        self.key_linear = nn.Linear(model_dim, model_dim)
        self.value_linear = nn.Linear(model_dim, model_dim)
        self.multihead_linear = nn.Linear(model_dim, model_dim)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(-3, -2)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        attention = scaled_dot_product_attention(
            self.split(self.query_linear(query)),
            self.split(self.key_linear(key)),
            self.split(self.value_linear(value)),
            self.obey_sequence_order,
            self.max_seq_len,
        )
        return self.multihead_linear(attention.transpose(-3, -2).flatten(-2))
