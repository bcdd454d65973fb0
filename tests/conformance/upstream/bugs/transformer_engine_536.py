"""Attention with rotary embeddings and a cache that several micro batches share."""

import torch
from torch import nn


class InferenceParams:
    """What is passed along during a generation: the cache, and where in it the next call reads and writes."""

    def __init__(self, max_batch_size, max_sequence_length):
        self.max_batch_size = max_batch_size
        self.max_sequence_length = max_sequence_length
        self.batch_size_offset = 0
        self.sequence_len_offset = 0
        self.key_value_memory_dict = {}


def apply_rotary_pos_emb(t, freqs):
    """t: (batch, length, heads, head_dim); freqs: (length, head_dim)"""
    cos, sin = freqs.cos()[:, None], freqs.sin()[:, None]
    x1, x2 = t.chunk(2, dim=-1)
    return t * cos.to(t) + torch.cat((-x2, x1), dim=-1) * sin.to(t)


class MultiheadAttention(nn.Module):
    def __init__(self, hidden_size, num_attention_heads, layer_number=1):
        super().__init__()
        self.num_heads = num_attention_heads
        self.head_dim = hidden_size // num_attention_heads
        self.layer_number = layer_number
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.proj = nn.Linear(hidden_size, hidden_size)

    def rotary_pos_emb(self, length, device):
        step = torch.arange(0, self.head_dim, 2, device=device).float() / self.head_dim
        positions = torch.arange(length, device=device).float()
        freqs = torch.outer(positions, 10000.0**-step)
        return torch.cat((freqs, freqs), dim=-1)

    def forward(self, hidden_states, inference_params=None):
        b, s, _ = hidden_states.shape
        q, k, v = self.qkv(hidden_states).view(b, s, 3, self.num_heads, self.head_dim).unbind(2)
        start, end, is_first_step = 0, s, False
        if inference_params is not None:
            memory = inference_params.key_value_memory_dict
            if self.layer_number not in memory:
                size = (inference_params.max_batch_size, inference_params.max_sequence_length)
                shape = (2, *size, self.num_heads, self.head_dim)
                memory[self.layer_number] = hidden_states.new_zeros(shape)
                is_first_step = True
            rows = slice(inference_params.batch_size_offset, inference_params.batch_size_offset + b)
            start = inference_params.sequence_len_offset
            end = start + s
            memory[self.layer_number][:, rows, start:end] = torch.stack((k, v))
            k, v = memory[self.layer_number][:, rows, :end]

        pos_emb = self.rotary_pos_emb(end, hidden_states.device)
        # before
        single = inference_params is not None and not is_first_step
        q_pos_emb = pos_emb[end - 1 : end] if single else pos_emb[:s]
        # after
        q_pos_emb = pos_emb[start:end]
        # end
        q, k = apply_rotary_pos_emb(q, q_pos_emb), apply_rotary_pos_emb(k, pos_emb)

        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * self.head_dim**-0.5
        visible = torch.ones(s, end, dtype=torch.bool, device=scores.device).tril(start)
        probs = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
        context = torch.einsum("bhqk,bkhd->bqhd", probs, v)
        return self.proj(context.reshape(b, s, -1))
