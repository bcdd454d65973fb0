"""The attention of a GPT with rotary embeddings on all dimensions of a head."""

import torch
from torch import nn


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq)

    def forward(self, x, seq_len):
        # before
        t = torch.arange(seq_len, device=x.device).type_as(self.inv_freq)
        freqs = torch.einsum("i,j->ij", t, self.inv_freq)
        # after
        t = torch.arange(seq_len, device=x.device).float()
        freqs = torch.einsum("i,j->ij", t, self.inv_freq.float())
        # end
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos().to(x.dtype), emb.sin().to(x.dtype)


def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin):
    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)


class ParallelSelfAttention(nn.Module):
    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.hidden_size_per_attention_head = hidden_size // num_attention_heads
        self.norm_factor = self.hidden_size_per_attention_head**0.5
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.rotary_emb = RotaryEmbedding(self.hidden_size_per_attention_head)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden_states):
        b, s, _ = hidden_states.shape
        # [b, s, np, 3 * hn] --> three of [b, np, s, hn]
        mixed = self.query_key_value(hidden_states).view(b, s, self.num_attention_heads, -1)
        query, key, value = mixed.transpose(1, 2).chunk(3, dim=-1)
        cos, sin = self.rotary_emb(value, seq_len=s)
        query, key = apply_rotary_pos_emb(query, key, cos, sin)
        scores = torch.matmul(query, key.transpose(-1, -2)) / self.norm_factor
        future = torch.ones(s, s, device=scores.device, dtype=torch.bool).triu(diagonal=1)
        scores = scores.masked_fill(future, torch.finfo(scores.dtype).min)
        probs = torch.softmax(scores, dim=-1)
        context = torch.matmul(probs, value)
        context = context.transpose(1, 2).reshape(b, s, -1)
        return self.dense(context)
