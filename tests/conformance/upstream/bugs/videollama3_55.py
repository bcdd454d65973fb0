"""The attention of a vision encoder that takes the patches of several images at once."""

import torch
import torch.nn.functional as F
from torch import nn


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb_vision(tensor, freqs):
    """Rotate (1, patches, heads, head_dim) by angles of shape (patches, head_dim // 2)."""
    orig_dtype = tensor.dtype
    tensor = tensor.double()
    cos = freqs.double().cos().unsqueeze(1).repeat(1, 1, 2).unsqueeze(0)
    sin = freqs.double().sin().unsqueeze(1).repeat(1, 1, 2).unsqueeze(0)
    output = (tensor * cos) + (rotate_half(tensor) * sin)
    return output.to(orig_dtype)


class VisionAttention(nn.Module):
    """What all implementations share."""

    def __init__(self, hidden_size, num_attention_heads, attention_dropout=0.0):
        super().__init__()
        self.embed_dim = hidden_size
        self.num_heads = num_attention_heads
        self.head_dim = self.embed_dim // self.num_heads
        if self.head_dim * self.num_heads != self.embed_dim:
            raise ValueError(
                f"embed_dim must be divisible by num_heads (got {self.embed_dim} and {self.num_heads})."
            )
        self.scale = self.head_dim**-0.5
        self.dropout = attention_dropout
        self.k_proj = nn.Linear(self.embed_dim, self.embed_dim)
        self.v_proj = nn.Linear(self.embed_dim, self.embed_dim)
        self.q_proj = nn.Linear(self.embed_dim, self.embed_dim)
        self.out_proj = nn.Linear(self.embed_dim, self.embed_dim)

    def project(self, hidden_states, rotary_pos_emb):
        q_len, _ = hidden_states.size()
        query_states = self.q_proj(hidden_states).view(q_len, self.num_heads, self.head_dim)
        key_states = self.k_proj(hidden_states).view(q_len, self.num_heads, self.head_dim)
        value_states = self.v_proj(hidden_states).view(q_len, self.num_heads, self.head_dim)
        query_states = apply_rotary_pos_emb_vision(
            query_states.unsqueeze(0), rotary_pos_emb
        ).squeeze(0)
        key_states = apply_rotary_pos_emb_vision(key_states.unsqueeze(0), rotary_pos_emb).squeeze(0)
        return query_states, key_states, value_states


class VisionSdpaAttention(VisionAttention):
    def forward(self, hidden_states, cu_seqlens, rotary_pos_emb):
        """
        Args:
            hidden_states: patches of all images, of shape (patches, hidden_size).
            cu_seqlens: where images begin and the last one ends, of shape (images + 1,).
            rotary_pos_emb: angles of the patches, of shape (patches, head_dim // 2).
        """
        seq_length = hidden_states.shape[0]
        query_states, key_states, value_states = self.project(hidden_states, rotary_pos_emb)

        attention_mask = torch.zeros(
            [1, seq_length, seq_length], device=query_states.device, dtype=torch.bool
        )
        for i in range(1, len(cu_seqlens)):
            start, end = int(cu_seqlens[i - 1]), int(cu_seqlens[i])
            attention_mask[..., start:end, start:end] = True

        query_states = query_states.transpose(0, 1)
        key_states = key_states.transpose(0, 1)
        value_states = value_states.transpose(0, 1)
        attn_output = F.scaled_dot_product_attention(
            query_states,
            key_states,
            value_states,
            attention_mask,
            dropout_p=self.dropout if self.training else 0.0,
        )
        attn_output = attn_output.transpose(0, 1)
        attn_output = attn_output.reshape(seq_length, -1)
        # before
        attn_output = self.proj(attn_output)
        # after
        attn_output = self.out_proj(attn_output)
        # end
        return attn_output
