"""A mixer of tokens by attention in a sliding window, with a cache that grows and makes the mask."""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import nn


@dataclass
class DynamicKVCacheLayer:
    """The keys and values of all tokens so far, of shape (batch, tokens, groups, head_dim)."""

    keys: torch.Tensor
    values: torch.Tensor

    def extend(self, added_keys: torch.Tensor, added_values: torch.Tensor) -> "DynamicKVCacheLayer":
        return DynamicKVCacheLayer(
            torch.cat([self.keys, added_keys], dim=1),
            torch.cat([self.values, added_values], dim=1),
        )

    def attention_mask(
        self, suffix_length: int, is_causal: bool, sliding_window_size: Optional[int] = None
    ) -> torch.Tensor:
        """Return which of all tokens the last suffix_length ones see, of shape (suffix_length, tokens)."""
        total_num_tokens = self.keys.shape[1]
        result = torch.ones(
            suffix_length, total_num_tokens, dtype=torch.bool, device=self.keys.device
        )
        prefix_length = total_num_tokens - suffix_length
        if is_causal:
            result = torch.tril(result, diagonal=prefix_length)
        if sliding_window_size is not None:
            # before
            result = torch.triu(result, diagonal=1 - sliding_window_size)
            # after
            result = torch.triu(result, diagonal=prefix_length + 1 - sliding_window_size)
            # end
        return result


class Attention(nn.Module):
    def __init__(
        self,
        model_dim: int,
        num_heads: int,
        num_groups: int,
        head_dim: int,
        is_causal: bool = True,
        sliding_window_size: Optional[int] = None,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.num_groups = num_groups
        self.head_dim = head_dim
        self.is_causal = is_causal
        self.sliding_window_size = sliding_window_size
        self.scale = head_dim**-0.5
        self.q_size, self.kv_size = num_heads * head_dim, num_groups * head_dim
        self.qkv_projection = nn.Linear(model_dim, self.q_size + 2 * self.kv_size, bias=False)
        self.out_projection = nn.Linear(self.q_size, model_dim, bias=False)
        self.query_norm = nn.RMSNorm(head_dim)
        self.key_norm = nn.RMSNorm(head_dim)

    def forward(
        self, inputs: torch.Tensor, state: Optional[DynamicKVCacheLayer] = None
    ) -> tuple[torch.Tensor, DynamicKVCacheLayer]:
        """
        inputs: the new tokens, of shape (batch, suffix tokens, model_dim)
        state: what the call on the tokens before returned
        """
        batch, suffix_length, _ = inputs.shape
        queries, keys, values = self.qkv_projection(inputs).split(
            [self.q_size, self.kv_size, self.kv_size], dim=-1
        )
        queries = self.query_norm(queries.unflatten(-1, (self.num_heads, self.head_dim)))
        keys = self.key_norm(keys.unflatten(-1, (self.num_groups, self.head_dim)))
        values = values.unflatten(-1, (self.num_groups, self.head_dim))
        updated_state = DynamicKVCacheLayer(keys, values)
        if state is not None:
            updated_state = state.extend(keys, values)

        mask = updated_state.attention_mask(suffix_length, self.is_causal, self.sliding_window_size)
        group_size = self.num_heads // self.num_groups
        all_keys = updated_state.keys.repeat_interleave(group_size, dim=2)
        all_values = updated_state.values.repeat_interleave(group_size, dim=2)
        attention_logits = torch.einsum("bqhd,bkhd->bhqk", queries * self.scale, all_keys)
        attention_logits = attention_logits.masked_fill(~mask, float("-inf"))
        attention_weights = attention_logits.softmax(dim=-1)
        attention_output = torch.einsum("bhqk,bkhd->bqhd", attention_weights, all_values)
        return self.out_projection(attention_output.flatten(2)), updated_state
