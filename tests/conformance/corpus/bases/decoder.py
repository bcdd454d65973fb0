"""A decoder's attention: rotary positions counted from the mask, grouped heads, a growing cache of pairs."""

import torch
from torch import nn


def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    q_embed = (q * cos) + (rotate_half(q) * sin)
    k_embed = (k * cos) + (rotate_half(k) * sin)
    return q_embed, k_embed


def repeat_kv(hidden_states, n_rep):
    batch, heads, length, head_dim = hidden_states.shape
    hidden_states = hidden_states[:, :, None].expand(batch, heads, n_rep, length, head_dim)
    return hidden_states.reshape(batch, heads * n_rep, length, head_dim)


class DecoderAttention(nn.Module):
    def __init__(self, hidden_size, num_heads, num_kv_heads, rope_theta=10000.0):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = hidden_size // num_heads
        self.groups = num_heads // num_kv_heads
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size, bias=False)
        inv_freq = 1.0 / rope_theta ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, hidden_states, attention_mask=None, past_key_value=None):
        bsz, q_len, _ = hidden_states.shape
        query = self.q_proj(hidden_states).view(bsz, q_len, self.num_heads, -1).transpose(1, 2)
        key = self.k_proj(hidden_states).view(bsz, q_len, self.num_kv_heads, -1).transpose(1, 2)
        value = self.v_proj(hidden_states).view(bsz, q_len, self.num_kv_heads, -1).transpose(1, 2)
        past_len = 0 if past_key_value is None else past_key_value[0].shape[-2]
        kv_len = past_len + q_len
        if attention_mask is None:
            attention_mask = torch.ones(bsz, kv_len, dtype=torch.long, device=hidden_states.device)
        position_ids = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, past_len:]
        angles = position_ids[..., None].float() * self.inv_freq.float()
        emb = torch.cat((angles, angles), dim=-1)
        cos, sin = emb.cos().to(query.dtype), emb.sin().to(query.dtype)
        query, key = apply_rotary_pos_emb(query, key, cos, sin)
        if past_key_value is not None:
            key = torch.cat([past_key_value[0], key], dim=2)
            value = torch.cat([past_key_value[1], value], dim=2)
        present = (key, value)
        key = repeat_kv(key, self.groups)
        value = repeat_kv(value, self.groups)
        scores = torch.matmul(query, key.transpose(2, 3)).float() * self.head_dim**-0.5
        queries = torch.arange(past_len, kv_len, device=scores.device)[:, None]
        allowed = torch.arange(kv_len, device=scores.device)[None, :] <= queries
        allowed = allowed[None, None] & attention_mask.bool()[:, None, None, :]
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        probs = torch.softmax(scores, dim=-1).to(query.dtype)
        output = torch.matmul(probs, value)
        output = output.transpose(1, 2).contiguous().reshape(bsz, q_len, -1)
        return self.o_proj(output), present
