"""The encoder of the sounds that a language model listens to: attention between the windows of a clip."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, theta=10000):
        super().__init__()
        freqs = 1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("freqs", freqs)

    def forward(self, seq_len):
        t = torch.arange(seq_len, device=self.freqs.device).float()
        return torch.outer(t, self.freqs.float()).repeat_interleave(2, dim=-1)


def rotate_half(x):
    x1, x2 = x.unflatten(-1, (-1, 2)).unbind(dim=-1)
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


def apply_rotary_pos_emb(t, freqs):
    rot_dim, seq_len = freqs.shape[-1], t.shape[-2]
    freqs = freqs[-seq_len:, :]
    t, t_unrotated = t[..., :rot_dim], t[..., rot_dim:]
    t = (t * freqs.cos().to(t.dtype)) + (rotate_half(t) * freqs.sin().to(t.dtype))
    return torch.cat((t, t_unrotated), dim=-1)


class MultiHeadAttention(nn.Module):
    """Multi-Head Attention module"""

    def __init__(self, n_head, d_model, d_k, d_v, dropout=0.1):
        super().__init__()
        self.n_head = n_head
        self.d_k = d_k
        self.d_v = d_v
        self.w_qs = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_ks = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_vs = nn.Linear(d_model, n_head * d_v, bias=False)
        self.fc = nn.Linear(n_head * d_v, d_model, bias=False)
        self.temperature = d_k**0.5
        self.attn_dropout = nn.Dropout(dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, q, k, v, rotary_frequencies, mask=None):
        d_k, d_v, n_head = self.d_k, self.d_v, self.n_head
        sz_b, len_q, len_k, len_v = q.size(0), q.size(1), k.size(1), v.size(1)

        # Separate different heads: b x lq x n x dv
        q = self.w_qs(q).view(sz_b, len_q, n_head, d_k)
        k = self.w_ks(k).view(sz_b, len_k, n_head, d_k)
        v = self.w_vs(v).view(sz_b, len_v, n_head, d_v)

        # before
        # Apply rotary positional embeddings
        q = apply_rotary_pos_emb(q, rotary_frequencies)
        k = apply_rotary_pos_emb(k, rotary_frequencies)

        # Transpose for attention dot product: b x n x lq x dv
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        # after
        # Transpose for attention dot product: b x n x lq x dv
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

        # Apply rotary positional embeddings
        q = apply_rotary_pos_emb(q, rotary_frequencies)
        k = apply_rotary_pos_emb(k, rotary_frequencies)
        # end

        attn = torch.matmul(q / self.temperature, k.transpose(2, 3))
        if mask is not None:
            attn = attn.masked_fill(mask[:, None, None, :] == 0, float("-inf"))
        attn = self.attn_dropout(F.softmax(attn, dim=-1))
        q = torch.matmul(attn, v)

        # Combine the last two dimensions to concatenate all the heads together: b x lq x (n*dv)
        q = q.transpose(1, 2).contiguous().view(sz_b, len_q, -1)
        return self.dropout(self.fc(q))


class TransformerEncoder(nn.Module):
    def __init__(self, d_model=32, n_head=4, d_k=8, d_v=8, dropout=0.1):
        super().__init__()
        self.rotary = RotaryEmbedding(d_k)
        self.slf_attn = MultiHeadAttention(n_head, d_model, d_k, d_v, dropout=dropout)
        self.layer_norm = nn.LayerNorm(d_model, eps=1e-6)

    def forward(self, x, mask=None):
        """
        x: the features of the windows, of shape (batch, windows, d_model)
        mask: 1 at windows and 0 at padding, of shape (batch, windows)
        """
        rotary_frequencies = self.rotary(x.shape[1])
        return self.layer_norm(x + self.slf_attn(x, x, x, rotary_frequencies, mask))
