"""The attention of a multimodal language model whose rows may have caches of different lengths."""

import torch
import torch.nn.functional as F
from torch import nn


class KVCache:
    """Keys and values of the tokens so far, and how many there are."""

    def __init__(self):
        self.keys = None
        self.values = None

    @property
    def offset(self):
        return 0 if self.keys is None else self.keys.shape[2]

    def update_and_fetch(self, keys, values):
        if self.keys is not None:
            keys = torch.cat([self.keys, keys], dim=2)
            values = torch.cat([self.values, values], dim=2)
        self.keys, self.values = keys, values
        return keys, values


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat([-x2, x1], dim=-1)


class MRoPE(nn.Module):
    """Rotates by positions in time, height and width, each of which has its share of the frequencies."""

    def __init__(self, dims, mrope_section, base=10000.0):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dims, 2).float() / dims))
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        axis = torch.repeat_interleave(torch.arange(3), torch.tensor(mrope_section))
        self.register_buffer("axis", axis, persistent=False)

    def forward(self, x, position_ids):
        """x: (B, H, L, D). position_ids: (3, B, L)."""
        positions = position_ids.permute(1, 2, 0)[..., self.axis].float()
        freqs = positions * self.inv_freq.float()
        emb = torch.cat([freqs, freqs], dim=-1)[:, None]
        return x * emb.cos().to(x.dtype) + rotate_half(x) * emb.sin().to(x.dtype)


def position_ids_from_starts(starts, seq_len):
    """Return the positions of the next tokens of each row, the same on all axes: text only moves on."""
    # before
    position_ids = starts[:, None].expand(len(starts), seq_len)
    # after
    position_ids = starts[:, None] + torch.arange(seq_len, device=starts.device)
    # end
    return position_ids[None].expand(3, -1, -1)


class Attention(nn.Module):
    def __init__(self, dims, n_heads, n_kv_heads=None, mrope_section=None):
        super().__init__()
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads or n_heads
        self.head_dim = dims // n_heads
        half = self.head_dim // 2
        section = mrope_section or (half - 2 * (half // 3), half // 3, half // 3)
        self.q_proj = nn.Linear(dims, n_heads * self.head_dim)
        self.k_proj = nn.Linear(dims, self.n_kv_heads * self.head_dim)
        self.v_proj = nn.Linear(dims, self.n_kv_heads * self.head_dim)
        self.o_proj = nn.Linear(n_heads * self.head_dim, dims, bias=False)
        self.rope = MRoPE(self.head_dim, section)

    def forward(self, x, cache=None):
        B, L, _ = x.shape
        queries = self.q_proj(x).view(B, L, self.n_heads, -1).transpose(1, 2)
        keys = self.k_proj(x).view(B, L, self.n_kv_heads, -1).transpose(1, 2)
        values = self.v_proj(x).view(B, L, self.n_kv_heads, -1).transpose(1, 2)

        if cache is None or cache.offset == 0:
            # the prompt
            position_ids = torch.arange(L, device=x.device).expand(3, B, L)
        else:
            starts = torch.full((B,), cache.offset, device=x.device)
            position_ids = position_ids_from_starts(starts, L)
        queries = self.rope(queries, position_ids)
        keys = self.rope(keys, position_ids)
        if cache is not None:
            keys, values = cache.update_and_fetch(keys, values)

        total = keys.shape[2]
        mask = torch.ones(L, total, dtype=torch.bool, device=x.device).tril(total - L)
        out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(B, L, -1))
