"""The layer that DeepSpeed puts in the place of a decoder layer for inference."""

import math
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class DeepSpeedSelfAttention(nn.Module):
    num_layers = 0

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.num_attention_heads = config.heads
        self.hidden_size_per_attention_head = config.hidden_size // config.heads
        self.norm_factor = math.sqrt(self.hidden_size_per_attention_head)
        self.norm_w = nn.Parameter(torch.ones(config.hidden_size))
        self.norm_b = nn.Parameter(torch.zeros(config.hidden_size))
        self.attn_qkvw = nn.Parameter(torch.empty(config.hidden_size, 3 * config.hidden_size))
        self.attn_qkvb = nn.Parameter(torch.zeros(3 * config.hidden_size))
        self.attn_ow = nn.Parameter(torch.empty(config.hidden_size, config.hidden_size))
        self.attn_ob = nn.Parameter(torch.zeros(config.hidden_size))
        nn.init.xavier_uniform_(self.attn_qkvw)
        nn.init.xavier_uniform_(self.attn_ow)

    def _transpose_for_scores(self, x):
        x = x.unflatten(-1, (self.num_attention_heads, self.hidden_size_per_attention_head))
        return x.permute(0, 2, 1, 3)

    def compute_attention(self, qkv_out, input_mask, layer_past):
        query, key, value = (self._transpose_for_scores(t) for t in qkv_out.chunk(3, dim=-1))
        if layer_past is not None:
            past_key, past_value = layer_past
            key = torch.cat((past_key.type_as(key), key), dim=-2)
            value = torch.cat((past_value.type_as(value), value), dim=-2)

        scores = torch.matmul(query, key.transpose(-1, -2)) / self.norm_factor
        q_len, k_len = scores.shape[-2:]
        hidden = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=scores.device)
        if self.config.triangular_masking:
            ones = torch.ones(q_len, k_len, dtype=torch.bool, device=scores.device)
            hidden = hidden | ones.triu(1 + k_len - q_len)
        if input_mask is not None:
            hidden = hidden | (input_mask == 0)[:, None, None, :]
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        context = torch.matmul(F.softmax(scores, dim=-1), value)
        context = context.permute(0, 2, 1, 3).contiguous().flatten(2)
        return context, key, value

    def forward(self, input, input_mask=None, layer_past=None):
        normed = F.layer_norm(
            input,
            (self.config.hidden_size,),
            self.norm_w,
            self.norm_b,
            self.config.layer_norm_eps,
        )
        qkv_out = torch.matmul(normed, self.attn_qkvw) + self.attn_qkvb
        context, key, value = self.compute_attention(qkv_out, input_mask, layer_past)
        return torch.matmul(context, self.attn_ow) + self.attn_ob, key, value


class DeepSpeedMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.inter = nn.Linear(config.hidden_size, config.intermediate_size)
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, input):
        return self.output(F.gelu(self.inter(self.norm(input)), approximate="tanh"))


class DeepSpeedTransformerInference(nn.Module):
    """Initialize the DeepSpeed Transformer Layer.

    Arguments:
        config: An object with hidden_size, intermediate_size, heads, layer_norm_eps and triangular_masking.
    """

    layer_id = 0

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.config.layer_id = DeepSpeedTransformerInference.layer_id
        DeepSpeedTransformerInference.layer_id += 1
        self.attention = DeepSpeedSelfAttention(config)
        self.mlp = DeepSpeedMLP(config)

    def forward(
        self,
        input: Optional[torch.Tensor] = None,
        input_mask: Optional[torch.Tensor] = None,
        past_key_value: Optional[tuple[torch.Tensor, torch.Tensor]] = None,
        use_cache: bool = False,
        layer_past: Optional[tuple[torch.Tensor, torch.Tensor]] = None,
        # hidden_states is another name of the input, in some models of Hugging Face
        hidden_states: Optional[torch.Tensor] = None,
    ):
        """
        input: (batch, tokens, hidden_size)
        input_mask: (batch, earlier and new tokens), 0 for padding
        past_key_value, layer_past: keys and values of earlier tokens; which name is used depends on the model
        """
        input = hidden_states if hidden_states is not None else input

        # before
        _layer_past = layer_past
        # after
        _layer_past = layer_past if layer_past is not None else past_key_value
        # end
        attention_output, key, value = self.attention(input, input_mask, _layer_past)
        residual = input + attention_output
        output = residual + self.mlp(residual)

        if use_cache:
            return output, (key, value)
        return output
