"""Attention in segments, with a memory of the segments before that is of a fixed size (InfiniTransformer)."""

import torch
import torch.nn.functional as F
from torch import nn


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, base=10000.0):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, position_ids):
        freqs = torch.outer(position_ids.to(self.inv_freq.dtype), self.inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos(), emb.sin()


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin):
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


class InfiniAttention(nn.Module):
    """
    Args:
        hidden_size: Size of a token.
        num_heads: Number of heads.
        segment_size: Number of tokens that attend to each other; what is before them is in the memory.
    """

    def __init__(self, hidden_size: int, num_heads: int, segment_size: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.segment_size = segment_size
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.rotary_emb = RotaryEmbedding(self.head_dim)
        self.gate = nn.Parameter(torch.zeros(1, num_heads, 1, 1))

    def _retrieve_from_memory(self, query_states, memory, norm_term):
        sigma_q = F.elu(query_states) + 1
        memory_output = torch.matmul(sigma_q, memory)
        return memory_output / (torch.matmul(sigma_q, norm_term) + 1e-6)

    def _update_memory(self, key_states, value_states, memory, norm_term):
        sigma_k = F.elu(key_states) + 1
        memory = memory + torch.matmul(sigma_k.transpose(-2, -1), value_states)
        return memory, norm_term + sigma_k.sum(dim=-2).unsqueeze(-1)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        bsz, q_len, _ = hidden_states.shape
        memory = hidden_states.new_zeros(bsz, self.num_heads, self.head_dim, self.head_dim)
        norm_term = hidden_states.new_zeros(bsz, self.num_heads, self.head_dim, 1)
        outputs = []
        for start in range(0, q_len, self.segment_size):
            segment = hidden_states[:, start : start + self.segment_size]
            query_states, key_states, value_states = (
                proj(segment).view(bsz, -1, self.num_heads, self.head_dim).transpose(1, 2)
                for proj in (self.q_proj, self.k_proj, self.v_proj)
            )
            positions = torch.arange(start, start + segment.shape[1], device=segment.device)
            cos, sin = self.rotary_emb(positions)

            # before
            query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)
            memory_output = self._retrieve_from_memory(query_states, memory, norm_term)
            memory, norm_term = self._update_memory(key_states, value_states, memory, norm_term)
            # after
            # the memory knows no positions: what is far away is looked up by its content
            memory_output = self._retrieve_from_memory(query_states, memory, norm_term)
            memory, norm_term = self._update_memory(key_states, value_states, memory, norm_term)
            query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)
            # end

            attn_output = F.scaled_dot_product_attention(
                query_states, key_states, value_states, is_causal=True
            )
            gate = torch.sigmoid(self.gate)
            combined_output = gate * memory_output + (1 - gate) * attn_output
            outputs.append(combined_output.transpose(1, 2).flatten(2))
        return self.o_proj(torch.cat(outputs, dim=1))
