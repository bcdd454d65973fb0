"""Attention layers: several query heads share a head of keys and values."""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import nn

Tensor = torch.Tensor


def apply_attention_logit_biases(
    logits: Tensor, attention_logit_biases: Optional[Tensor]
) -> Tensor:
    """Adds the biases, if there are any, in the dtype of the logits."""
    if attention_logit_biases is None:
        return logits
    return logits + attention_logit_biases.to(logits.dtype)


def softmax_with_biases(logits: Tensor, attention_logit_biases: Optional[Tensor]) -> Tensor:
    """Returns the attention probabilities over the last axis."""
    logits = apply_attention_logit_biases(logits, attention_logit_biases)
    return logits.softmax(dim=-1)


class GroupedQueryAttention(nn.Module):
    """A Grouped-Query multi-head attention layer.

    There are fewer heads of keys and values than of queries: neighboring query heads use the same one.
    """

    @dataclass
    class Config:
        """Configures GroupedQueryAttention."""

        # Input dim of queries, keys and values, and output dim.
        input_dim: int = 32
        # Number of query heads. Must divide hidden_dim evenly.
        num_heads: int = 4
        # Number of key and value heads. Must divide num_heads evenly.
        num_kv_heads: int = 2
        # Whether the projections have biases.
        bias: bool = True

    def __init__(self, cfg: Optional[Config] = None):
        super().__init__()
        cfg = cfg or self.Config()
        if cfg.num_heads % cfg.num_kv_heads != 0:
            raise ValueError("num_heads should be a multiple of num_kv_heads.")
        self.config = cfg
        self.per_head_dim = cfg.input_dim // cfg.num_heads
        kv_dim = cfg.num_kv_heads * self.per_head_dim
        self.q_proj = nn.Linear(cfg.input_dim, cfg.input_dim, bias=cfg.bias)
        self.k_proj = nn.Linear(cfg.input_dim, kv_dim, bias=cfg.bias)
        self.v_proj = nn.Linear(cfg.input_dim, kv_dim, bias=cfg.bias)
        self.o_proj = nn.Linear(cfg.input_dim, cfg.input_dim, bias=cfg.bias)

    def _repeat_kv_heads(self, key_or_value: Tensor) -> Tensor:
        """Gives each query head its head of keys or values.

        Args:
            key_or_value: A Tensor of shape [batch, source_length, num_kv_heads, per_head_dim].

        Returns:
            A Tensor of shape [batch, source_length, num_heads, per_head_dim].
        """
        num_head_repeats = self.config.num_heads // key_or_value.shape[-2]
        if num_head_repeats == 1:
            return key_or_value
        # before
        return key_or_value.repeat(1, 1, num_head_repeats, 1)
        # after
        return key_or_value.repeat_interleave(num_head_repeats, dim=2)
        # end

    def forward(self, query: Tensor, attention_logit_biases: Optional[Tensor] = None) -> Tensor:
        """Computes self-attention.

        Args:
            query: A Tensor of shape [batch, target_length, input_dim].
            attention_logit_biases: Added to the logits, very negative where a key must not be seen; of a shape that
                broadcasts to [batch, num_heads, target_length, target_length].
        """
        q_proj = self.q_proj(query).unflatten(-1, (-1, self.per_head_dim))
        k_proj = self.k_proj(query).unflatten(-1, (-1, self.per_head_dim))
        v_proj = self.v_proj(query).unflatten(-1, (-1, self.per_head_dim))

        k_proj = self._repeat_kv_heads(k_proj)
        v_proj = self._repeat_kv_heads(v_proj)
        q_proj = q_proj * self.per_head_dim**-0.5
        logits = torch.einsum("btnh,bsnh->bnts", q_proj, k_proj)
        probs = softmax_with_biases(logits, attention_logit_biases)
        context = torch.einsum("bnts,bsnh->btnh", probs, v_proj)
        return self.o_proj(context.flatten(-2))
