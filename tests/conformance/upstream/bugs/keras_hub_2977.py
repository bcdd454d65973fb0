"""The decoder layer of Falcon, with ALiBi and grouped keys and values."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class FalconAttention(nn.Module):
    def __init__(
        self,
        hidden_dim,
        num_heads,
        num_kv_heads,
        attention_dropout_rate=0.0,
        use_bias=False,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = hidden_dim // num_heads
        self.query_dense = nn.Linear(hidden_dim, num_heads * self.head_dim, bias=use_bias)
        self.key_dense = nn.Linear(hidden_dim, num_kv_heads * self.head_dim, bias=use_bias)
        self.value_dense = nn.Linear(hidden_dim, num_kv_heads * self.head_dim, bias=use_bias)
        self.output_dense = nn.Linear(num_heads * self.head_dim, hidden_dim, bias=use_bias)
        self.attention_dropout = nn.Dropout(attention_dropout_rate)
        self.inv_norm_factor = 1.0 / math.sqrt(self.head_dim)

    def forward(self, inputs, alibi, attention_mask, cache=None, cache_update_index=None):
        batch_size, seq_length, _ = inputs.shape
        query = self.query_dense(inputs).view(batch_size, seq_length, self.num_heads, -1)

        def compute_kv(x):
            kv_shape = (batch_size, seq_length, self.num_kv_heads, self.head_dim)
            return self.key_dense(x).view(kv_shape), self.value_dense(x).view(kv_shape)

        key, value = compute_kv(inputs)
        if cache is not None:
            # The cache holds room for all tokens of the generation, (batch, 2, max_length, kv_heads, head_dim).
            start = 0 if cache_update_index is None else cache_update_index
            update = torch.stack([key, value], dim=1).to(cache.dtype)
            cache = torch.cat(
                [cache[:, :, :start], update, cache[:, :, start + seq_length :]], dim=2
            )
            key, value = cache[:, 0], cache[:, 1]

        groups = self.num_heads // self.num_kv_heads
        key = key.repeat_interleave(groups, dim=2)
        value = value.repeat_interleave(groups, dim=2)

        attention_scores = torch.einsum("bqnh,bknh->bnqk", query, key) * self.inv_norm_factor
        attention_scores = attention_scores + alibi
        attention_scores = attention_scores.masked_fill(
            ~attention_mask[:, None], torch.finfo(attention_scores.dtype).min
        )
        attention_scores = self.attention_dropout(attention_scores.softmax(dim=-1))
        attention_output = torch.einsum("bnqk,bknh->bqnh", attention_scores, value)
        attention_output = self.output_dense(attention_output.reshape(batch_size, seq_length, -1))
        return attention_output if cache is None else (attention_output, cache)


class FalconTransformerDecoder(nn.Module):
    def __init__(
        self,
        hidden_dim,
        num_attention_heads,
        intermediate_dim,
        num_kv_heads,
        use_bias=False,
        layer_norm_epsilon=1e-5,
        attention_dropout_rate=0.0,
        feedforward_dropout_rate=0.0,
    ):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.input_layernorm = nn.LayerNorm(hidden_dim, eps=layer_norm_epsilon, bias=use_bias)
        self.attention_layer = FalconAttention(
            hidden_dim, num_attention_heads, num_kv_heads, attention_dropout_rate, use_bias
        )
        self.attention_dropout = nn.Dropout(attention_dropout_rate)
        self.post_attention_layernorm = nn.LayerNorm(
            hidden_dim, eps=layer_norm_epsilon, bias=use_bias
        )
        self.dense_h_to_4h = nn.Linear(hidden_dim, intermediate_dim, bias=use_bias)
        self.dense_4h_to_h = nn.Linear(intermediate_dim, hidden_dim, bias=use_bias)
        self.feedforward_dropout = nn.Dropout(feedforward_dropout_rate)

    def forward(
        self,
        inputs,
        decoder_padding_mask=None,
        attention_cache=None,
        attention_cache_update_index=None,
    ):
        """
        inputs: (batch, seq_length, hidden_dim)
        decoder_padding_mask: (batch, keys), 1 for tokens; with a cache, the keys are those of the cache
        """
        batch_size, seq_length, _ = inputs.shape
        key_length = seq_length if attention_cache is None else attention_cache.shape[2]
        attention_mask = self._compute_attention_mask(
            inputs, key_length, decoder_padding_mask, attention_cache_update_index
        )

        residual = inputs
        x = self.input_layernorm(inputs)

        mask = decoder_padding_mask
        if mask is None:
            # before
            mask = torch.ones(batch_size, seq_length, dtype=torch.int32, device=inputs.device)
            # after
            mask = torch.ones(batch_size, key_length, dtype=torch.int32, device=inputs.device)
            # end
        alibi = self._build_alibi_tensor(self.num_attention_heads, mask, x.dtype)

        x = self.attention_layer(
            x,
            alibi=alibi,
            attention_mask=attention_mask,
            cache=attention_cache,
            cache_update_index=attention_cache_update_index,
        )
        if attention_cache is not None:
            x, attention_cache = x

        x = self.attention_dropout(x) + residual
        residual = x

        x = self.post_attention_layernorm(x)
        x = self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(x)))
        x = self.feedforward_dropout(x) + residual
        return x if attention_cache is None else (x, attention_cache)

    def _compute_attention_mask(self, inputs, key_length, padding_mask, cache_update_index):
        start = 0 if cache_update_index is None else cache_update_index
        i = torch.arange(inputs.shape[1], device=inputs.device)[:, None] + start
        j = torch.arange(key_length, device=inputs.device)
        causal_mask = (i >= j)[None]
        if padding_mask is None:
            return causal_mask
        return causal_mask & padding_mask[:, None, :].bool()

    def _build_alibi_tensor(self, num_heads, mask, dtype):
        slopes = torch.tensor(self._get_slopes(num_heads), dtype=dtype, device=mask.device)
        mask = mask.to(torch.int32)
        arange_tensor = ((mask.cumsum(dim=-1) - 1) * mask)[:, None, None, :]
        return slopes[:, None, None] * arange_tensor.to(dtype)

    def _get_slopes(self, num_heads):
        def get_slopes_power_of_2(n):
            start = 2 ** (-(2 ** -(math.log2(n) - 3)))
            return [start ** (i + 1) for i in range(n)]

        if math.log2(num_heads).is_integer():
            return get_slopes_power_of_2(num_heads)
        closest = 2 ** math.floor(math.log2(num_heads))
        return (
            get_slopes_power_of_2(closest)
            + self._get_slopes(2 * closest)[0::2][: num_heads - closest]
        )
