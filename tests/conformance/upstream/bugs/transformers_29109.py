"""PyTorch LLaMA model."""

import math
from typing import Optional

import torch
from torch import nn


class LlamaRMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon))


class LlamaRotaryEmbedding(nn.Module):
    def __init__(self, dim, max_position_embeddings=2048, base=10000):
        super().__init__()
        self.dim = dim
        self.max_position_embeddings = max_position_embeddings
        self.base = base
        inv_freq = 1.0 / (
            self.base ** (torch.arange(0, self.dim, 2, dtype=torch.int64).float() / self.dim)
        )
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    @torch.no_grad()
    def forward(self, x, position_ids):
        # x: [bs, num_attention_heads, seq_len, head_size]
        # before
        freqs = (
            self.inv_freq[:, None].float().expand(-1, position_ids.shape[0]) @ position_ids.float()
        ).t()
        # after
        inv_freq_expanded = (
            self.inv_freq[None, :, None].float().expand(position_ids.shape[0], -1, 1)
        )
        freqs = (inv_freq_expanded @ position_ids[:, None, :].float()).transpose(1, 2)
        # end
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(dtype=x.dtype), emb.sin().to(dtype=x.dtype)


def rotate_half(x):
    """Rotates half the hidden dims of the input."""
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=-3):
    """Applies Rotary Position Embedding to the query and key tensors."""
    cos = cos.unsqueeze(unsqueeze_dim)
    sin = sin.unsqueeze(unsqueeze_dim)
    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)


def repeat_kv(hidden_states: torch.Tensor, n_rep: int) -> torch.Tensor:
    batch, num_key_value_heads, slen, head_dim = hidden_states.shape
    if n_rep == 1:
        return hidden_states
    hidden_states = hidden_states[:, :, None, :, :].expand(
        batch, num_key_value_heads, n_rep, slen, head_dim
    )
    return hidden_states.reshape(batch, num_key_value_heads * n_rep, slen, head_dim)


class LlamaAttention(nn.Module):
    """Multi-headed attention from 'Attention Is All You Need' paper"""

    def __init__(
        self,
        hidden_size,
        num_attention_heads,
        num_key_value_heads,
        attention_dropout=0.0,
        rope_theta=10000,
    ):
        super().__init__()
        self.attention_dropout = attention_dropout
        self.num_heads = num_attention_heads
        self.head_dim = hidden_size // num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.num_key_value_groups = self.num_heads // self.num_key_value_heads
        self.q_proj = nn.Linear(hidden_size, self.num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, self.num_key_value_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, self.num_key_value_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, hidden_size, bias=False)
        self.rotary_emb = LlamaRotaryEmbedding(self.head_dim, base=rope_theta)

    def forward(self, hidden_states, attention_mask, position_ids, past_key_value=None):
        bsz, q_len, _ = hidden_states.size()
        query_states = (
            self.q_proj(hidden_states)
            .view(bsz, q_len, self.num_heads, self.head_dim)
            .transpose(1, 2)
        )
        key_states = self.k_proj(hidden_states).view(bsz, q_len, -1, self.head_dim).transpose(1, 2)
        value_states = (
            self.v_proj(hidden_states).view(bsz, q_len, -1, self.head_dim).transpose(1, 2)
        )

        cos, sin = self.rotary_emb(value_states, position_ids)
        query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)

        if past_key_value is not None:
            key_states = torch.cat([past_key_value[0], key_states], dim=2)
            value_states = torch.cat([past_key_value[1], value_states], dim=2)
        past_key_value = (key_states, value_states)

        key_states = repeat_kv(key_states, self.num_key_value_groups)
        value_states = repeat_kv(value_states, self.num_key_value_groups)
        attn_weights = torch.matmul(query_states, key_states.transpose(2, 3)) / math.sqrt(
            self.head_dim
        )
        attn_weights = attn_weights + attention_mask
        attn_weights = nn.functional.softmax(attn_weights, dim=-1)
        attn_weights = nn.functional.dropout(
            attn_weights, p=self.attention_dropout, training=self.training
        )
        attn_output = torch.matmul(attn_weights, value_states)
        attn_output = attn_output.transpose(1, 2).contiguous().reshape(bsz, q_len, -1)
        return self.o_proj(attn_output), past_key_value


class LlamaDecoderLayer(nn.Module):
    def __init__(self, hidden_size, intermediate_size, rms_norm_eps, **attention):
        super().__init__()
        self.self_attn = LlamaAttention(hidden_size, **attention)
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)
        self.input_layernorm = LlamaRMSNorm(hidden_size, eps=rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(hidden_size, eps=rms_norm_eps)

    def forward(self, hidden_states, attention_mask, position_ids, past_key_value=None):
        attn_output, present = self.self_attn(
            self.input_layernorm(hidden_states), attention_mask, position_ids, past_key_value
        )
        hidden_states = hidden_states + attn_output
        x = self.post_attention_layernorm(hidden_states)
        return hidden_states + self.down_proj(
            nn.functional.silu(self.gate_proj(x)) * self.up_proj(x)
        ), present


class LlamaModel(nn.Module):
    """Transformer decoder consisting of *num_hidden_layers* layers."""

    def __init__(
        self,
        vocab_size=32000,
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=None,
        attention_dropout=0.0,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
    ):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
        self.layers = nn.ModuleList(
            [
                LlamaDecoderLayer(
                    hidden_size,
                    intermediate_size,
                    rms_norm_eps,
                    num_attention_heads=num_attention_heads,
                    num_key_value_heads=num_key_value_heads or num_attention_heads,
                    attention_dropout=attention_dropout,
                    rope_theta=rope_theta,
                )
                for _ in range(num_hidden_layers)
            ]
        )
        self.norm = LlamaRMSNorm(hidden_size, eps=rms_norm_eps)

    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: Optional[torch.Tensor] = None,
        position_ids: Optional[torch.LongTensor] = None,
        past_key_values: Optional[list[tuple[torch.Tensor, torch.Tensor]]] = None,
    ):
        """
        Args:
            input_ids: the new tokens, (batch, q_len)
            attention_mask: 1 for tokens and 0 for padding, (batch, past_len + q_len)
            position_ids: (batch, q_len), counted from the attention mask if not given
            past_key_values: keys and values of each layer, as an earlier call returned them
        """
        inputs_embeds = self.embed_tokens(input_ids)
        q_len = input_ids.shape[1]
        past_seen_tokens = 0 if past_key_values is None else past_key_values[0][0].shape[2]
        if position_ids is None and attention_mask is not None:
            position_ids = attention_mask.long().cumsum(-1) - 1
            position_ids = position_ids.masked_fill(attention_mask == 0, 1)[:, -q_len:]
        elif position_ids is None:
            position_ids = torch.arange(
                past_seen_tokens, past_seen_tokens + q_len, device=input_ids.device
            )[None]

        causal_mask = self._update_causal_mask(attention_mask, inputs_embeds, past_seen_tokens)
        hidden_states, presents = inputs_embeds, []
        for i, decoder_layer in enumerate(self.layers):
            past = None if past_key_values is None else past_key_values[i]
            hidden_states, present = decoder_layer(hidden_states, causal_mask, position_ids, past)
            presents.append(present)
        return self.norm(hidden_states), presents

    def _update_causal_mask(self, attention_mask, input_tensor, past_seen_tokens):
        q_len, min_dtype = input_tensor.shape[1], torch.finfo(input_tensor.dtype).min
        hidden = torch.ones(
            q_len, past_seen_tokens + q_len, dtype=torch.bool, device=input_tensor.device
        )
        hidden = hidden.triu(past_seen_tokens + 1)[None, None]
        if attention_mask is not None:
            hidden = hidden | (attention_mask == 0)[:, None, None, :]
        return torch.zeros_like(hidden, dtype=input_tensor.dtype).masked_fill(hidden, min_dtype)
